"""What `tff_algos.experiments` offers."""

from tff_algos import experiments
from tff_algos.experiments import launch, public


def test_every_public_name_is_there():
    for name in experiments.__all__:
        assert getattr(experiments, name) is getattr(public, name), name
    assert experiments.run is launch.run
