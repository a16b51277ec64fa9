"""Every `--algo` name; flags, help and the README's table come from here alone."""

import difflib
from collections.abc import Mapping

from tff_algos.algorithms import (
    centralized,
    fed_avg,
    fed_prox,
    fed_sgd,
    mime_lite,
    personalized_fed_avg,
)
from tff_algos.algorithms.algorithm import Algorithm

ALGORITHMS: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        centralized.CENTRALIZED,
        fed_sgd.FED_SGD,
        fed_avg.FED_AVG,
        fed_avg.FED_AVG_M,
        fed_prox.FED_PROX,
        fed_prox.FED_PROX_M,
        mime_lite.MIME_LITE,
        personalized_fed_avg.REPTILE,
        personalized_fed_avg.PERSONALIZED_FED_AVG,
    )
}


class UnknownAlgorithmError(ValueError):
    """No algorithm has the name; says which comes nearest."""


def get(name: str) -> Algorithm:
    """Returns the algorithm called `name`.

    Raises:
      UnknownAlgorithmError: If there is none.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    nearest = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0)[0]
    raise UnknownAlgorithmError(
        f"--algo={name} is unknown, did you mean {nearest}? "
        f"One of: {', '.join(ALGORITHMS)}."
    )
