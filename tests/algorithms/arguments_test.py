"""Bad arguments of every algorithm are named, hyperparameters in one line."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems, problems
from tests.testing.float32_processes import fed_meta, functional
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
EVERYBODY = {"num_clients": 3}


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_bad_proximal_strength_is_named(bad):
    with pytest.raises(HyperparameterError, match="proximal_strength=.*>= 0"):
        tff_algos.build_fed_prox(functional(), SGD(0.1), proximal_strength=bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, np.nan])
def test_bad_momentum_is_named(bad):
    with pytest.raises(HyperparameterError, match="server_momentum=.*in \\[0, 1\\)"):
        tff_algos.build_fed_avg_m(functional(), SGD(0.1), server_momentum=bad)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "one of meta_learning_rate and meta_optimizer_fn"),
        (
            {"meta_learning_rate": 0.1, "meta_optimizer_fn": SGD(0.1)},
            "one of meta_learning_rate and meta_optimizer_fn",
        ),
        ({"meta_learning_rate": -1.0}, "meta_learning_rate=-1.0.*>= 0"),
        ({"meta_learning_rate": 0.1, "meta_steps": 0}, "meta_steps=0.*>= 1"),
        (
            {"meta_learning_rate": 0.1, "meta_batch_size": 0},
            "meta_batch_size=0.*>= 1",
        ),
    ],
)
def test_bad_meta_updates_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        fed_meta(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"client_learning_rate": 0.0}, "client_learning_rate=0.0.*> 0"),
        ({"client_epochs_per_round": 0}, "client_epochs_per_round=0.*>= 1"),
        ({"eval_reduction": "max"}, "eval_reduction='max'.*mean, sum"),
        ({"gradient_clip_norm": 0.0}, "gradient_clip_norm=0.0.*> 0"),
        ({"client_learning_rate_decay": 1.5}, "decay=1.5"),
    ],
)
def test_bad_hyperparameters_of_uga_are_named(kwargs, message):
    with pytest.raises(HyperparameterError, match=message):
        tff_algos.build_unbiased_gradient_aggregation(
            functional(), SGD(0.1), **{"client_learning_rate": 0.1} | kwargs
        )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"client_steps_per_round": -1}, "client_steps_per_round=-1.*>= 0"),
        ({"query": "none"}, "query='none'.*next_batch, all, held_out"),
    ],
)
def test_bad_hyperparameters_of_maml_are_named(kwargs, message):
    for build in (tff_algos.build_maml, tff_algos.build_fomaml):
        with pytest.raises(HyperparameterError, match=message):
            build(
                functional(),
                SGD(0.1),
                **{"client_learning_rate": 0.1, "client_steps_per_round": 1} | kwargs,
            )


WORKS, SGD_01 = tff_algos.client_works, SGD(0.1)
PFEDME = {
    "client_learning_rate": 0.1,
    "personal_strength": 1.0,
    "personal_steps": 1,
    "personal_learning_rate": 0.1,
}
BAD_PARTS = [
    (
        lambda: WORKS.build_local_training_client_work(
            functional(), SGD_01, proximal_strength=-1.0
        ),
        "proximal_strength=-1.0.*>= 0",
    ),
    (
        lambda: WORKS.build_moreau_envelope_client_work(
            functional(), **PFEDME | {"personal_steps": 0}
        ),
        "personal_steps=0.*integer >= 1",
    ),
    (
        lambda: WORKS.build_mixture_client_work(
            functional(), client_learning_rate=0.1, mixing=1.5, adaptive_mixing=False
        ),
        r"mixing=1.5.*in \[0, 1\]",
    ),
    (
        lambda: WORKS.build_ditto_client_work(
            functional(), SGD_01, personal_strength=-0.1
        ),
        "personal_strength=-0.1.*>= 0",
    ),
    (
        lambda: WORKS.build_dynamic_regularization_client_work(
            functional(), SGD_01, dynamic_regularization=0.1, mean_examples=0.0
        ),
        "mean_examples=0.0.*> 0",
    ),
    (
        lambda: WORKS.build_contrastive_training_client_work(
            block_problems.block_model(),
            SGD_01,
            contrastive_strength=1.0,
            contrastive_temperature=0.0,
        ),
        "contrastive_temperature=0.0.*> 0",
    ),
    (
        lambda: WORKS.build_multi_level_training_client_work(
            block_problems.block_model(),
            SGD_01,
            WORKS.BranchLosses(),
            gradient_clip_norm=0.0,
        ),
        "gradient_clip_norm=0.0.*> 0",
    ),
    (
        lambda: WORKS.BranchLosses(distillation_weight=-1.0),
        "distillation_weight=-1.0.*>= 0",
    ),
    (
        lambda: WORKS.StepCorrection(local_rows=("drfit",)),
        "local_rows='drfit'.*previous, server, drift",
    ),
    (
        lambda: tff_algos.finalizers.GradientMemory(
            num_clients=3, memory_size=2, server_momentum=1.0, memory_decay=0.5
        ),
        r"server_momentum=1.0.*in \[0, 1\)",
    ),
    (
        lambda: tff_algos.finalizers.build_dynamic_regularization_finalizer(
            tff.to_type(np.float32), dynamic_regularization=0.1, num_clients=0
        ),
        "num_clients=0.*integer >= 1",
    ),
    (
        lambda: tff_algos.build_personalization_eval(functional(), lambda: SGD_01),
        "optimizer=.*expected an optimizer of TFF, such as",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD_PARTS)
def test_bad_hyperparameters_of_parts_are_named(build, message):
    with pytest.raises(HyperparameterError, match=message):
        build()


BAD_FAIRNESS = [
    (tff_algos.build_fed_mgda, {"epsilon": -0.1}, "epsilon=-0.1.*>= 0"),
    (tff_algos.build_fed_mgda, {"epsilon": np.nan}, "epsilon=nan.*>= 0"),
    (tff_algos.build_fed_mgda, {"cap": 0.0}, r"cap=0.0.*in \(0, 1\]"),
    (tff_algos.build_fed_mgda_plus, {"cap": 1.5}, r"cap=1.5.*in \(0, 1\]"),
    (
        tff_algos.build_fed_mgda_plus,
        {"zero_update_policy": "drop"},
        "zero_update_policy='drop'.*exclude, keep",
    ),
    (
        tff_algos.build_mgda_prox,
        {"proximal_strength": -1.0},
        "proximal_strength=-1.0.*>= 0",
    ),
    (
        tff_algos.build_mgda_prox,
        {"proximal_strength": 0.1, "epsilon": np.inf},
        "epsilon=inf.*>= 0",
    ),
    (
        tff_algos.build_fed_avg_n,
        {"normalize_at": "home"},
        "normalize_at='home'.*server, clients",
    ),
    (tff_algos.build_q_fed_avg, {"q": -1.0}, "q=-1.0.*>= 0"),
    (tff_algos.build_q_fed_avg, {"lipschitz": 0.0}, "lipschitz=0.0.*> 0"),
    (tff_algos.build_q_fed_avg, {"lipschitz": None}, "lipschitz=None.*> 0"),
    (
        tff_algos.build_q_fed_avg,
        {"loss_reduction": "sum"},
        "loss_reduction='sum'.*mean, total",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"num_clients": 0},
        "num_clients=0.*an integer >= 1",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"num_clients": 2.5},
        "num_clients=2.5.*an integer >= 1",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"mixture_learning_rate": -0.1},
        "mixture_learning_rate=-0.1.*>= 0",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"returned_model": "best"},
        "returned_model='best'.*average, last",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"afl_mode": "step"},
        "afl_mode='step'.*epochs, batch",
    ),
]
REQUIRED_OF_FAIR = {
    tff_algos.build_q_fed_avg: {"q": 1.0, "lipschitz": 1.0},
    tff_algos.build_agnostic_federated_learning: {
        "num_clients": 3,
        "mixture_learning_rate": 0.1,
    },
}


@pytest.mark.parametrize(("build", "kwargs", "message"), BAD_FAIRNESS)
def test_bad_hyperparameters_of_fair_algorithms_are_named(build, kwargs, message):
    with pytest.raises(HyperparameterError, match=message):
        build(functional(), SGD(0.1), **REQUIRED_OF_FAIR.get(build, {}) | kwargs)


def linear():
    return problems.linear_model(np.float32)


def variable():
    return FunctionalVariableModel(linear())


def blocks():
    return block_problems.block_model(np.float32)


BAD = [
    (tff_algos.build_scaffold, {"client_learning_rate": 0.0}, "rate=0.0.*number > 0"),
    (tff_algos.build_scaffold, {"num_clients": 0}, "num_clients=0.*an integer >= 1"),
    (
        tff_algos.build_scaffold,
        {"control_variate": "both"},
        "control_variate='both'.*one of mean_step, full_gradient",
    ),
    (
        tff_algos.build_scaffold,
        {"client_learning_rate_decay": 0.0},
        r"client_learning_rate_decay=0.0.*in \(0, 1\]",
    ),
    (
        tff_algos.build_fed_dyn,
        {"dynamic_regularization": -0.1},
        "dynamic_regularization=-0.1.*a number >= 0",
    ),
    (
        tff_algos.build_fed_dyn,
        {"dynamic_regularization": np.nan},
        "dynamic_regularization=nan.*a number >= 0",
    ),
    (tff_algos.build_fed_dyn, {"num_clients": 2.0}, "num_clients=2.0.*an integer"),
    (tff_algos.build_fed_dyn, {"mean_examples": 0.0}, "mean_examples=0.0.*number > 0"),
    (
        tff_algos.build_fed_dyn,
        {"client_learning_rate_decay": 1.5},
        r"client_learning_rate_decay=1.5.*in \(0, 1\]",
    ),
    (tff_algos.build_mifa, {"num_clients": -1}, "num_clients=-1.*an integer >= 1"),
    (tff_algos.build_mifa, {"mean_over": "some"}, "mean_over='some'.*one of all, seen"),
    (
        tff_algos.build_mifa,
        {"memory_dtype": "int8"},
        "memory_dtype='int8'.*one of bfloat16, float32, float64",
    ),
    (
        tff_algos.build_mifa,
        {"client_learning_rate_decay": -1.0},
        r"client_learning_rate_decay=-1.0.*in \(0, 1\]",
    ),
    (
        tff_algos.build_mifa_m,
        {"server_momentum": 1.0},
        r"server_momentum=1.0.*in \[0, 1\)",
    ),
    (tff_algos.build_gradma_s, {"num_clients": True}, "num_clients=True.*an integer"),
    (tff_algos.build_gradma_s, {"memory_size": -1}, "memory_size=-1.*integer >= 0"),
    (tff_algos.build_gradma_s, {"memory_size": 2.5}, "memory_size=2.5.*integer >= 0"),
    (
        tff_algos.build_gradma_s,
        {"memory_decay": 1.5},
        r"memory_decay=1.5.*in \[0, 1\]",
    ),
    (
        tff_algos.build_gradma_s,
        {"server_momentum": -0.5},
        r"server_momentum=-0.5.*in \[0, 1\)",
    ),
    (
        tff_algos.build_gradma_s,
        {"server_learning_rate": -1.0},
        "server_learning_rate=-1.0.*>= 0",
    ),
    (tff_algos.build_gradma_s, {"qp_margin": 1.0}, r"qp_margin=1.0.*in \(-1, 1\)"),
    (tff_algos.build_gradma_s, {"qp_scope": "both"}, "qp_scope='both'.*per_tensor"),
    (
        tff_algos.build_gradma_s,
        {"memory_dtype": "half"},
        "memory_dtype='half'.*bfloat16",
    ),
    (tff_algos.build_gradma_w, {"qp_margin": -1.0}, r"qp_margin=-1.0.*in \(-1, 1\)"),
    (
        tff_algos.build_gradma_w,
        {"local_rows": ("server", "past")},
        "local_rows='server,past'.*a list of previous, server, drift, each once, or",
    ),
    (
        tff_algos.build_gradma_w,
        {"local_rows": ("drift", "drift")},
        "local_rows='drift,drift'.*each once",
    ),
    (
        tff_algos.build_gradma_w,
        {"persist_previous": "yes"},
        "persist_previous='yes'.*True or False",
    ),
    (tff_algos.build_gradma, {"qp_scope": ""}, "qp_scope=''.*global, per_tensor"),
    (tff_algos.build_gradma, {"memory_decay": -0.1}, "memory_decay=-0.1.*in"),
    (
        tff_algos.build_moon,
        {"contrastive_strength": -1.0},
        "contrastive_strength=-1.0.*>= 0",
    ),
    (
        tff_algos.build_moon,
        {"contrastive_temperature": 0.0},
        "contrastive_temperature=0.0.*> 0",
    ),
    (tff_algos.build_moon_m, {"server_momentum": 1.5}, "server_momentum=1.5.*in"),
    (tff_algos.build_fed_mlb, {"local_loss_weight": -1.0}, "local_loss_weight=-1.0"),
    (tff_algos.build_fed_mlb, {"hybrid_loss_weight": np.inf}, "hybrid_loss_weight=inf"),
    (tff_algos.build_fed_mlb, {"distillation_weight": -1.0}, "distillation_weight=-1"),
    (
        tff_algos.build_fed_mlb,
        {"distillation_temperature": 0.0},
        "distillation_temperature=0.0.*> 0",
    ),
    (
        tff_algos.build_fed_mlb,
        {"gradient_clip_norm": 0.0},
        "gradient_clip_norm=0.0.*> 0",
    ),
    (
        tff_algos.build_fed_mlb_m,
        {"server_learning_rate": -0.1},
        "server_learning_rate=-0.1.*>= 0",
    ),
]
REQUIRED = {
    tff_algos.build_scaffold: EVERYBODY | {"client_learning_rate": 0.1},
    tff_algos.build_fed_dyn: EVERYBODY | {"dynamic_regularization": 0.1},
    tff_algos.build_mifa: EVERYBODY,
    tff_algos.build_mifa_m: EVERYBODY,
    tff_algos.build_gradma_s: EVERYBODY,
    tff_algos.build_gradma: EVERYBODY,
    tff_algos.build_moon: {"contrastive_strength": 1.0},
    tff_algos.build_moon_m: {"contrastive_strength": 1.0},
}
ON_BLOCKS = (
    tff_algos.build_moon,
    tff_algos.build_moon_m,
    tff_algos.build_fed_mlb,
    tff_algos.build_fed_mlb_m,
)


def build(builder, model, **changes):
    optimizers = [] if builder is tff_algos.build_scaffold else [SGD(0.1)]
    return builder(model, *optimizers, **REQUIRED.get(builder, {}) | changes)


@pytest.mark.parametrize(("builder", "changes", "message"), BAD)
def test_bad_hyperparameters_are_named_in_one_line(builder, changes, message):
    model = blocks() if builder in ON_BLOCKS else linear()
    with pytest.raises(HyperparameterError, match=message) as caught:
        build(builder, model, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("builder", [tff_algos.build_gradma_w, tff_algos.build_gradma])
def test_corrected_steps_refuse_models_in_variables(builder):
    with pytest.raises(TypeError, match="FunctionalModel, whose gradients.*found"):
        build(builder, variable)


@pytest.mark.parametrize("model", [linear, lambda: variable], ids=["plain", "variable"])
@pytest.mark.parametrize("builder", ON_BLOCKS)
def test_who_looks_into_blocks_refuses_models_without_any(builder, model):
    with pytest.raises(
        TypeError, match="BlockModel of at least 1 blocks, found <class"
    ):
        build(builder, model())


@pytest.mark.parametrize("builder", [*REQUIRED, tff_algos.build_gradma_w])
def test_a_model_of_the_wrong_kind_is_named(builder):
    with pytest.raises(TypeError, match=r"Expected model_fn to be a .*Model.*found"):
        build(builder, 3)


@pytest.mark.parametrize(
    "builder",
    [tff_algos.build_scaffold, tff_algos.build_fed_dyn, tff_algos.build_gradma_s],
)
def test_an_unweighted_aggregator_is_refused_with_a_tip(builder):
    with pytest.raises(HyperparameterError, match="^model_agg.*as_weighted_aggregator"):
        build(
            builder,
            linear(),
            model_aggregator=tff.aggregators.UnweightedMeanFactory(),
        )


@pytest.mark.parametrize("argument", ["client_optimizer_fn", "server_optimizer_fn"])
def test_a_function_is_no_optimizer(argument):
    arguments = {"client_optimizer_fn": SGD(0.1), argument: lambda: SGD(0.1)}
    with pytest.raises(
        HyperparameterError, match=f"^{argument}=<.*expected an optimizer of TFF, such"
    ):
        tff_algos.build_fed_avg(functional(), **arguments)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("metrics_aggregator", "expected a function such as tff.learning.metrics"),
        ("model_distributor", "expected a tff.learning.templates.DistributionProcess"),
        ("model_aggregator", "expected a weighted factory of tff.aggregators"),
    ],
)
def test_a_number_is_no_process_and_no_factory(argument, expected):
    with pytest.raises(HyperparameterError, match=f"^{argument}=3 .*{expected}"):
        tff_algos.build_fed_avg(functional(), SGD(0.1), **{argument: 3})


def test_a_word_is_no_client_weighting():
    with pytest.raises(
        HyperparameterError, match="^client_weighting='uniform' .*member"
    ):
        tff_algos.build_fed_avg(functional(), SGD(0.1), client_weighting="uniform")
