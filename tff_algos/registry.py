"""Every `--algo` name; flags, help and the README's table come from here alone."""

import difflib
from collections.abc import Mapping

from tff_algos import messages
from tff_algos.algorithms import (
    afl,
    centralized,
    control_variates,
    fed_avg,
    fed_meta,
    fed_mgda,
    fed_mlb,
    fed_prox,
    fed_sgd,
    fed_share,
    gradma,
    maml,
    mifa,
    mime_lite,
    moon,
    personalized_fed_avg,
    q_fed_avg,
    uga,
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
        fed_share.FED_SHARE,
        mime_lite.MIME_LITE,
        uga.UGA,
        fed_meta.FED_META,
        fed_meta.FED_META_UGA,
        personalized_fed_avg.REPTILE,
        maml.FOMAML,
        maml.MAML,
        personalized_fed_avg.PERSONALIZED_FED_AVG,
        fed_mgda.FED_MGDA,
        fed_mgda.FED_MGDA_PLUS,
        fed_mgda.MGDA_PROX,
        fed_mgda.FED_AVG_N,
        q_fed_avg.Q_FED_AVG,
        afl.AGNOSTIC,
        gradma.GRADMA,
        gradma.GRADMA_W,
        gradma.GRADMA_S,
        moon.MOON,
        moon.MOON_M,
        fed_mlb.FED_MLB,
        fed_mlb.FED_MLB_M,
        control_variates.SCAFFOLD,
        control_variates.FED_DYN,
        mifa.MIFA,
        mifa.MIFA_M,
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
        f"--algo={messages.shortened(name)} is unknown, did you mean {nearest}? "
        f"One of: {', '.join(ALGORITHMS)}."
    )
