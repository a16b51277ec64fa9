"""Help comes from docstrings, on one line, and from those that they refer to."""

from typing import Annotated

import tff_algos
from tff_algos.experiments.help_texts import described
from tff_algos.hyperparameters import hparam, record


def help_of(target):
    return {name: field.help for name, field in described(target).items()}


def test_a_text_of_many_lines_is_one_without_its_full_stop():
    def build(*, rate: Annotated[float, hparam(above=0)] = 0.5, plain: int = 3):
        """Builds.

        Args:
          rate: Of steps, which
            may be long.
          plain: No hyperparameter.
        """

    assert help_of(build) == {"rate": "Of steps, which may be long"}
    assert described(build)["rate"].default == 0.5


def test_a_text_may_be_that_of_a_builder():
    def build(*, server_momentum: Annotated[float, hparam(low=0)] = 0.5):
        """Builds.

        Args:
          server_momentum: As in `build_fed_avg_m`.
        """

    expected = help_of(tff_algos.build_fed_avg_m)["server_momentum"]
    assert help_of(build) == {"server_momentum": expected}
    assert expected and not expected.startswith("As in")


def test_a_shared_text_says_nothing_of_one_algorithm_alone():
    # Without its term, MGDA-Prox is FedMGDA+, and not FedAvg as FedProx is.
    found = help_of(tff_algos.build_mgda_prox)["proximal_strength"]
    assert found == help_of(tff_algos.build_fed_prox)["proximal_strength"]
    assert "FedAvg" not in found


def test_all_other_texts_may_be_those_of_a_builder():
    def build(
        *,
        own: Annotated[float, hparam()] = 0.5,
        server_momentum: Annotated[float, hparam(low=0)] = 0.5,
    ):
        """Builds.

        Args:
          model_fn: As in `build_fed_avg_m`, and so is every argument not listed here.
          own: Its own.
        """

    expected = help_of(tff_algos.build_fed_avg_m)["server_momentum"]
    assert help_of(build) == {"own": "Its own", "server_momentum": expected}


def test_a_record_has_the_texts_of_those_it_extends():
    @record
    class Base:
        """A record.

        Attributes:
          first: Of the base.
        """

        first: Annotated[int, hparam(low=0)] = 1

    @record
    class Extended(Base):
        """One more.

        Attributes:
          second: Its own.
        """

        second: Annotated[int, hparam(low=0)] = 2

    assert help_of(Extended) == {"first": "Of the base", "second": "Its own"}
