"""The public symbols of `tff_algos`, which imports them when one is first needed."""

from tff_algos import (
    aggregators,
    client_works,
    clients,
    execution,
    finalizers,
    hyperparameters,
    layers,
    models,
    solvers,
)
from tff_algos.algorithms.afl import build_agnostic_federated_learning
from tff_algos.algorithms.apfl import build_apfl
from tff_algos.algorithms.centralized import build_centralized
from tff_algos.algorithms.composition import compose
from tff_algos.algorithms.ditto import build_ditto
from tff_algos.algorithms.fed_avg import build_fed_avg, build_fed_avg_m
from tff_algos.algorithms.fed_bn import build_fed_bn
from tff_algos.algorithms.fed_dyn import build_fed_dyn
from tff_algos.algorithms.fed_meta import build_fed_meta
from tff_algos.algorithms.fed_mgda import (
    build_fed_avg_n,
    build_fed_mgda,
    build_fed_mgda_plus,
    build_mgda_prox,
)
from tff_algos.algorithms.fed_mlb import build_fed_mlb, build_fed_mlb_m
from tff_algos.algorithms.fed_per import build_fed_per
from tff_algos.algorithms.fed_prox import build_fed_prox, build_fed_prox_m
from tff_algos.algorithms.fed_rep import build_fed_rep
from tff_algos.algorithms.fed_sgd import build_fed_sgd
from tff_algos.algorithms.fed_share import build_fed_share, with_shared_examples
from tff_algos.algorithms.gradma import build_gradma, build_gradma_s, build_gradma_w
from tff_algos.algorithms.lg_fed_avg import build_lg_fed_avg
from tff_algos.algorithms.local import build_local
from tff_algos.algorithms.maml import build_fomaml, build_maml
from tff_algos.algorithms.mifa import build_mifa, build_mifa_m
from tff_algos.algorithms.mime_lite import build_mime_lite
from tff_algos.algorithms.moon import build_moon, build_moon_m
from tff_algos.algorithms.personal_process import PersonalProcess
from tff_algos.algorithms.personalized_fed_avg import build_personalized_fed_avg
from tff_algos.algorithms.pfedme import build_pfedme
from tff_algos.algorithms.q_fed_avg import build_q_fed_avg
from tff_algos.algorithms.reptile import build_reptile
from tff_algos.algorithms.scaffold import build_scaffold
from tff_algos.algorithms.uga import build_unbiased_gradient_aggregation
from tff_algos.client_works.personalization import build_personalization_eval
from tff_algos.clients.client_memory import (
    ClientMemory,
    ClientMemoryError,
    index_dataset,
)

__all__ = [
    "ClientMemory",
    "ClientMemoryError",
    "PersonalProcess",
    "aggregators",
    "build_agnostic_federated_learning",
    "build_apfl",
    "build_centralized",
    "build_ditto",
    "build_fed_avg",
    "build_fed_avg_m",
    "build_fed_avg_n",
    "build_fed_bn",
    "build_fed_dyn",
    "build_fed_meta",
    "build_fed_mgda",
    "build_fed_mgda_plus",
    "build_fed_mlb",
    "build_fed_mlb_m",
    "build_fed_per",
    "build_fed_prox",
    "build_fed_prox_m",
    "build_fed_rep",
    "build_fed_sgd",
    "build_fed_share",
    "build_fomaml",
    "build_gradma",
    "build_gradma_s",
    "build_gradma_w",
    "build_lg_fed_avg",
    "build_local",
    "build_maml",
    "build_mgda_prox",
    "build_mifa",
    "build_mifa_m",
    "build_mime_lite",
    "build_moon",
    "build_moon_m",
    "build_personalization_eval",
    "build_personalized_fed_avg",
    "build_pfedme",
    "build_q_fed_avg",
    "build_reptile",
    "build_scaffold",
    "build_unbiased_gradient_aggregation",
    "client_works",
    "clients",
    "compose",
    "execution",
    "finalizers",
    "hyperparameters",
    "index_dataset",
    "layers",
    "models",
    "solvers",
    "with_shared_examples",
]
