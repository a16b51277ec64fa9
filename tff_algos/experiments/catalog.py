"""Every `--algo` name; flags, help and the table of docs/algorithms.md come from here alone."""

import types
from collections.abc import Mapping

import attrs

import tff_algos
from tff_algos import messages
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import maml_batches, pair_defaults, stages
from tff_algos.experiments.declarations import Settings
from tff_algos.experiments.recipe import EVERY_TASK, Recipe, of
from tff_algos.experiments.settings import Cohort, check_momentum, one_epoch
from tff_algos.hyperparameters import HyperparameterError

_HEAVY_BALL = types.MappingProxyType({"server_momentum": 0.9})
# An update is as large as the model; builders remember one of every client.
_FEW_UPDATES = types.MappingProxyType({"memory_size": 100})
_FINN = "Finn et al., 2017, arXiv 1703.03400"
_JIANG = "Jiang et al., 2019, arXiv 1909.12488"
_HU = "Hu et al., 2022, arXiv 2006.11489"
_LUO = "Luo et al., 2023, arXiv 2302.14307"
_YAO = "Yao et al., 2019, arXiv 1910.08234"
_KIM = "Kim et al., 2022, arXiv 2207.06936"
_LI_MOON = "Li et al., 2021, arXiv 2103.16257"
_GU = "Gu et al., 2021, arXiv 2106.04159"


def _one_epoch(settings: Settings) -> BatchSpec:
    return one_epoch(of(Cohort, settings))


def _all_epochs(settings: Settings) -> BatchSpec:
    """Returns the batches of E epochs, each shuffled anew."""
    return attrs.evolve(
        _one_epoch(settings), num_epochs=settings["client_epochs_per_round"]
    )


def _check_fed_share(settings: Settings) -> None:
    weighting = settings["client_weighting"]
    if not settings["count_shared"] and weighting != "num_examples":
        raise HyperparameterError(
            "count_shared",
            settings["count_shared"],
            "True unless --client_weighting=num_examples",
        )
    if settings["warm_start_rounds"] > settings["total_rounds"]:
        raise HyperparameterError(
            "warm_start_rounds",
            settings["warm_start_rounds"],
            f"at most --total_rounds={settings['total_rounds']}, of which they are the "
            "first",
        )


def _check_mime_lite(settings: Settings) -> None:
    check_momentum(
        "base_momentum", settings["base_momentum"], settings["client_optimizer"]
    )


def _scaffold_needs_full_pass(settings: Settings) -> bool:
    several = settings["client_epochs_per_round"] > 1
    by_steps = settings["client_steps_per_round"] is not None
    return settings["control_variate"] == "full_gradient" and (several or by_steps)


_MAML = {
    "without": ("client_epochs_per_round",),
    "defaults": {"clients_per_round": 5},
    "unset": {"step_batching": "straddling; per_pass where the query is held out"},
    "settings": pair_defaults.MAML,
    "paces": pair_defaults.MAML_PACE,
    "batches": maml_batches.batches,
    "needs_full_pass": maml_batches.needs_full_pass,
    "uses_part": lambda settings: settings["query"] == "held_out",
    "check": maml_batches.check,
}
_FED_META = {
    "build_stages": stages.fed_meta,
    "also": (tff_algos.build_fed_meta,),
    "unset": {
        "meta_learning_rate": "client_learning_rate",
        "meta_learning_rate_decay": "client_learning_rate_decay",
    },
}

RECIPES = (
    Recipe(
        name="centralized",
        title="Centralized",
        summary="minibatch training on the pooled examples, no federation",
        paper="the reference of McMahan et al., 2017, arXiv 1602.05629",
        build=tff_algos.build_centralized,
        build_stages=stages.centralized,
        local_steps=False,
        without=("clients_per_round", "max_elements_per_client", "sampling"),
        defaults={"client_optimizer": "adam"},
        settings={EVERY_TASK: {"client_learning_rate": 0.001}},
        batches=_one_epoch,
    ),
    Recipe(
        name="fedsgd",
        title="FedSGD",
        summary="one full-batch gradient per sampled client and round",
        paper="McMahan et al., 2017, arXiv 1602.05629",
        build=tff_algos.build_fed_sgd,
        local_steps=False,
        settings=pair_defaults.FED_SGD,
        paces=pair_defaults.SINGLE_STEP_PACE,
        batches=_one_epoch,
    ),
    Recipe(
        name="fedavg",
        title="FedAvg",
        summary="mean of locally trained models",
        paper="McMahan et al., 2017, arXiv 1602.05629",
        build=tff_algos.build_fed_avg,
    ),
    Recipe(
        name="fedavgm",
        title="FedAvgM",
        summary="FedAvg with momentum at the server",
        paper="Hsu et al., 2019, arXiv 1909.06335",
        build=tff_algos.build_fed_avg,
        defaults=_HEAVY_BALL,
    ),
    Recipe(
        name="fedprox",
        title="FedProx",
        summary="FedAvg with a proximal term that damps client drift",
        paper="Li et al., 2020, arXiv 1812.06127",
        build=tff_algos.build_fed_prox,
    ),
    Recipe(
        name="fedproxm",
        title="FedProxM",
        summary="FedProx with momentum at the server",
        paper="Li et al., 2020, arXiv 1812.06127",
        build=tff_algos.build_fed_prox,
        defaults=_HEAVY_BALL,
    ),
    Recipe(
        name="fedshare",
        not_private="examples of clients are shared",
        title="FedShare",
        summary="FedAvg on clients' own examples and a small set that all share",
        paper="Zhao et al., 2018, arXiv 1806.00582",
        build=tff_algos.build_fed_share,
        build_stages=stages.fed_share,
        check=_check_fed_share,
        # The paper deals the set out where clients are people, as small as it is.
        settings={
            "emnist": {"share_mode": "split"},
            "shakespeare": {"share_mode": "split"},
        },
    ),
    Recipe(
        name="mimelite",
        not_private="clients also send full gradients, which get no noise",
        title="MimeLite",
        summary="local steps with the server's frozen momentum",
        paper="Karimireddy et al., 2021, arXiv 2008.03606",
        build=tff_algos.build_mime_lite,
        build_stages=stages.mime_lite,
        without=("client_momentum",),
        check=_check_mime_lite,
        # All local steps of a round follow the same momentum, undamped: with 0.9 or 0.5,
        # 30 rounds teach most tasks little or nothing.
        defaults={"base_momentum": 0.1},
        gradients=2.0,
    ),
    Recipe(
        name="uga",
        title="UGA",
        summary="gradients through local training, with respect to the server's weights",
        paper=_YAO,
        build=tff_algos.build_unbiased_gradient_aggregation,
        local_steps=False,
        settings=pair_defaults.UGA,
        paces=pair_defaults.SINGLE_STEP_PACE,
        batches=_all_epochs,
        gradients=3.0,
    ),
    Recipe(
        name="fedmeta",
        not_private="its server trains on examples of clients",
        title="FedMeta",
        summary="FedAvg, then a gradient step on the server's own data",
        paper=_YAO,
        build=tff_algos.build_fed_avg,
        **_FED_META,
    ),
    Recipe(
        name="fedmeta_uga",
        not_private="its server trains on examples of clients",
        title="FedMeta with UGA",
        summary="UGA, then a gradient step on the server's own data",
        paper=_YAO,
        build=tff_algos.build_unbiased_gradient_aggregation,
        local_steps=False,
        settings=pair_defaults.UGA,
        paces=pair_defaults.SINGLE_STEP_PACE,
        batches=_all_epochs,
        **_FED_META,
        gradients=3.0,
    ),
    Recipe(
        name="reptile",
        title="Reptile",
        summary="the server moves toward the mean of the clients' weights after K steps",
        paper="Nichol et al., 2018, arXiv 1803.02999",
        build=tff_algos.build_reptile,
        without=("client_epochs_per_round",),
        defaults={
            "clients_per_round": 5,
            "client_steps_per_round": 10,
            "client_learning_rate": 0.02,
            "server_optimizer": "adam",
            "server_learning_rate": 0.001,
        },
        settings=pair_defaults.REPTILE,
    ),
    Recipe(
        name="fomaml",
        title="FOMAML",
        summary="gradients at the end of K local steps",
        paper=_FINN,
        build=tff_algos.build_fomaml,
        **_MAML,
    ),
    Recipe(
        name="maml",
        title="MAML",
        summary="gradient of the loss after K local steps, with respect to the weights before",
        paper=_FINN,
        build=tff_algos.build_maml,
        **_MAML,
        gradients=3.0,
    ),
    Recipe(
        name="personalized_fedavg",
        not_private="it runs one process after another; use fedavg or reptile",
        not_chosen="it runs one process after another; use fedavg or reptile",
        title="Personalized FedAvg",
        summary="FedAvg, then Reptile, for a model that personalizes well",
        paper=_JIANG,
        build=tff_algos.build_personalized_fed_avg,
        build_stages=stages.personalized_fed_avg,
        without=("client_steps_per_round", "step_batching"),
        defaults={
            "clients_per_round": 5,
            "client_epochs_per_round": 10,
            "client_learning_rate": 0.02,
        },
        unset={
            "total_rounds": "what the stages' rounds add up to",
            "pretrain_rounds": "8; five sevenths of total_rounds if that is set",
            "finetune_rounds": "24; two sevenths of total_rounds if that is set",
        },
        settings={EVERY_TASK: {"client_epochs_per_round": 10}},
        check=stages.check_personalized_fed_avg,
    ),
    Recipe(
        name="fedmgda",
        not_private="its server sees every client's update",
        title="FedMGDA",
        summary="minimum-norm combination of model deltas: to first order, raises no client's loss",
        paper=_HU,
        build=tff_algos.build_fed_mgda,
        settings=pair_defaults.FED_MGDA,
    ),
    Recipe(
        name="fedmgda_plus",
        not_private="its server sees every client's update",
        title="FedMGDA+",
        summary="FedMGDA on normalized model deltas, so that their lengths do not count",
        paper=_HU,
        build=tff_algos.build_fed_mgda_plus,
        settings=pair_defaults.FED_MGDA_PLUS,
    ),
    Recipe(
        name="mgda_prox",
        not_private="its server sees every client's update",
        title="MGDA-Prox",
        summary="FedMGDA+ with a proximal term that damps client drift",
        paper=_HU,
        build=tff_algos.build_mgda_prox,
        settings=pair_defaults.FED_MGDA_PLUS,
    ),
    Recipe(
        name="fedavg_n",
        not_private="updates are normalized, not clipped, and its server may see each",
        title="FedAvg-n",
        summary="mean of normalized model deltas",
        paper=_HU,
        build=tff_algos.build_fed_avg_n,
    ),
    Recipe(
        name="qfedavg",
        not_private="clients also report their losses, which get no noise",
        title="q-FedAvg",
        summary="FedAvg that weights clients by powers of their losses, for fairness",
        paper="Li et al., 2020, arXiv 1905.10497",
        build=tff_algos.build_q_fed_avg,
        build_stages=stages.q_fed_avg,
        settings=pair_defaults.Q_FED_AVG,
        unset={"lipschitz": "the inverse of client_learning_rate"},
    ),
    Recipe(
        name="afl",
        not_private="clients also report their losses, which get no noise",
        title="AFL",
        summary="FedAvg for the worst mixture of clients: weights rise with their losses",
        paper="Mohri et al., 2019, arXiv 1902.00146",
        build=tff_algos.build_agnostic_federated_learning,
        uses_part=lambda settings: settings["afl_mode"] == "batch",
    ),
    Recipe(
        name="gradma",
        not_private="its server keeps every client's update",
        title="GradMA",
        summary="GradMA-W's local steps and GradMA-S's server momentum",
        paper=_LUO,
        build=tff_algos.build_gradma,
        build_stages=stages.gradma,
        without=("server_optimizer",),
        defaults=_FEW_UPDATES,
        settings=pair_defaults.GRADMA,
        gradients=4.0,
    ),
    Recipe(
        name="gradma_w",
        title="GradMA-W",
        summary="FedAvg whose local steps do not oppose earlier gradients",
        paper=_LUO,
        build=tff_algos.build_gradma_w,
        settings=pair_defaults.GRADMA_W,
        gradients=3.0,
    ),
    Recipe(
        name="gradma_s",
        not_private="its server keeps every client's update",
        title="GradMA-S",
        summary="FedAvg whose server momentum opposes no remembered update",
        paper=_LUO,
        build=tff_algos.build_gradma_s,
        build_stages=stages.gradma,
        without=("server_optimizer",),
        defaults=_FEW_UPDATES,
        settings=pair_defaults.GRADMA,
    ),
    Recipe(
        name="moon",
        title="MOON",
        summary="FedAvg with features near the server's and far from the client's last ones",
        paper=_LI_MOON,
        build=tff_algos.build_moon,
        prepare_task=stages.moon_task,
        build_stages=stages.moon,
        gradients=1.67,
    ),
    Recipe(
        name="moonm",
        title="MOONM",
        summary="MOON with momentum at the server",
        paper=_LI_MOON,
        build=tff_algos.build_moon,
        prepare_task=stages.moon_task,
        build_stages=stages.moon,
        defaults=_HEAVY_BALL,
        gradients=1.67,
    ),
    Recipe(
        name="fedmlb",
        title="FedMLB",
        summary="FedAvg with local features that also suit the server's later blocks",
        paper=_KIM,
        build=tff_algos.build_fed_mlb,
        gradients=1.85,
    ),
    Recipe(
        name="fedmlbm",
        title="FedMLBM",
        summary="FedMLB with momentum at the server",
        paper=_KIM,
        build=tff_algos.build_fed_mlb,
        defaults=_HEAVY_BALL,
        gradients=1.85,
    ),
    Recipe(
        name="scaffold",
        not_private="clients also send control variates, which get no noise",
        title="SCAFFOLD",
        summary="FedAvg whose clients correct their steps by control variates",
        paper="Karimireddy et al., 2020, arXiv 1910.06378",
        build=tff_algos.build_scaffold,
        needs_full_pass=_scaffold_needs_full_pass,
    ),
    Recipe(
        name="feddyn",
        not_private="its server also uses the number of clients that report, without noise",
        title="FedDyn",
        summary="FedAvg with a proximal term and a linear one, which each client updates",
        paper="Acar et al., 2021, arXiv 2111.04263",
        build=tff_algos.build_fed_dyn,
        build_stages=stages.fed_dyn,
    ),
    Recipe(
        name="mifa",
        not_private="its server keeps every client's update",
        title="MIFA",
        summary="mean over all clients of each one's latest update",
        paper=_GU,
        build=tff_algos.build_mifa,
        build_stages=stages.mifa,
        settings=pair_defaults.MIFA,
    ),
    Recipe(
        name="mifam",
        not_private="its server keeps every client's update",
        title="MIFAM",
        summary="MIFA with momentum at the server",
        paper=_GU,
        build=tff_algos.build_mifa,
        build_stages=stages.mifa,
        defaults=_HEAVY_BALL,
        settings=pair_defaults.MIFA_M,
    ),
    Recipe(
        name="ditto",
        title="Ditto",
        summary="FedAvg, plus each client's own model, kept near the server's",
        paper="Li et al., 2021, arXiv 2012.04221",
        build=tff_algos.build_ditto,
        gradients=2.0,
    ),
    Recipe(
        name="pfedme",
        title="pFedMe",
        summary="clients' own models; the server minimizes their losses' Moreau envelopes",
        paper="Dinh et al., 2020, arXiv 2006.08848",
        build=tff_algos.build_pfedme,
        settings=pair_defaults.PFEDME,
        gradients="personal_steps",
    ),
    Recipe(
        name="apfl",
        title="APFL",
        summary="each client predicts with a mixture of its own model and the server's",
        paper="Deng et al., 2020, arXiv 2003.13461",
        build=tff_algos.build_apfl,
        gradients=2.0,
    ),
    Recipe(
        name="fedper",
        title="FedPer",
        summary="FedAvg whose clients keep the model's last blocks to themselves",
        paper="Arivazhagan et al., 2019, arXiv 1912.00818",
        build=tff_algos.build_fed_per,
    ),
    Recipe(
        name="fedrep",
        title="FedRep",
        summary="FedPer whose clients train their own last blocks first, then the shared ones",
        paper="Collins et al., 2021, arXiv 2102.07078",
        build=tff_algos.build_fed_rep,
    ),
    Recipe(
        name="lg_fedavg",
        title="LG-FedAvg",
        summary="FedAvg whose clients keep the model's first blocks to themselves",
        paper="Liang et al., 2020, arXiv 2001.01523",
        build=tff_algos.build_lg_fed_avg,
    ),
    Recipe(
        name="fedbn",
        title="FedBN",
        summary="FedAvg whose clients keep batch normalization to themselves",
        paper="Li et al., 2021, arXiv 2102.07623",
        build=tff_algos.build_fed_bn,
    ),
    Recipe(
        name="local",
        not_private="nothing is sent that noise could hide",
        not_chosen="clients send nothing",
        title="Local training",
        summary="every client trains alone; nothing is shared",
        paper="the baseline of the papers above",
        build=tff_algos.build_local,
    ),
)

ALGORITHMS: Mapping[str, Recipe] = {recipe.name: recipe for recipe in RECIPES}


class UnknownAlgorithmError(ValueError):
    """No algorithm has the name; says which is similar."""


def get(name: str, recipes: Mapping[str, Recipe] = ALGORITHMS) -> Recipe:
    """Returns the recipe called `name`.

    Raises:
      UnknownAlgorithmError: If there is none.
    """
    if name in recipes:
        return recipes[name]
    raise UnknownAlgorithmError(messages.unknown("algo", name, recipes))
