"""Algorithms that remember: types, kinds of models, runtimes, bad input."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems, problems
from tests.testing.remembering_cohorts import Training, run, vector
from tests.testing.remembering_processes import (
    ALGORITHMS,
    CLIENTS,
    NUM_CLIENTS,
    cohort,
    model_of,
    process,
    some_rounds,
)
from tests.testing.speed import some_fast
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
EXAMPLES = {
    "linear": ((np.float64, [None, 5]), (np.float64, [None])),
    "blocks": ((np.float64, [None, 5]), (np.int32, [None])),
}
LINEAR_WEIGHTS = (tff.TensorType(np.float64, [5]), tff.TensorType(np.float64))
# As of the test against NumPy.
PERSISTENT = {
    "memory_size": 3,
    "qp_scope": "per_tensor",
    "persist_previous": True,
    "server_momentum": 0.25,
    "memory_decay": 0.75,
}


def linear():
    return problems.linear_model(np.float32)


def variable():
    return FunctionalVariableModel(linear())


def blocks():
    return block_problems.block_model(np.float32)


def data_type_of(name, row=None):
    examples = [tff.TensorType(*spec) for spec in EXAMPLES[model_of(name)]]
    fields = [("examples", tff.SequenceType(tuple(examples)))]
    fields.append(("client_index", tff.SequenceType(np.int32)))
    if row is not None:
        fields.append(("memory", tff.SequenceType(row)))
    return collections.OrderedDict(fields)


def assert_takes(process, data_type):
    expected = tff.FederatedType(data_type, tff.CLIENTS)
    assert process.next.type_signature.parameter[1].is_equivalent_to(expected)


def metrics_of(process):
    return process.next.type_signature.result.metrics.member


@pytest.mark.parametrize("name", ALGORITHMS)
def test_next_has_the_type_of_a_learning_process(name):
    built = process(name)
    assert isinstance(built, tff.learning.templates.LearningProcess)
    assert built.initialize.type_signature.result.placement is tff.SERVER
    metrics = metrics_of(built)
    assert metrics.client_work.train.loss.dtype == np.float32
    assert metrics.client_work.num_non_finite_clients.dtype == np.int32
    assert metrics.client_work.num_empty_clients.dtype == np.int32
    assert metrics.finalizer.num_rejected_rounds.dtype == np.int32
    assert metrics.finalizer.update_norm.dtype == np.float32


@pytest.mark.parametrize("name", ["gradma_w", "fedmlb"])
def test_clients_without_memory_bring_their_batches_alone(name):
    assert_takes(process(name), data_type_of(name)["examples"])


@pytest.mark.parametrize("name", ["mifa", "gradma_s", "gradma"])
def test_clients_whom_the_server_remembers_tell_their_number(name):
    assert_takes(process(name), data_type_of(name))


def block_weights_type():
    weights = block_problems.initial_weights()
    return tuple(tff.TensorType(np.float64, weight.shape) for weight in weights)


def remembered_weights_type(weights):
    return collections.OrderedDict(seen=np.bool_, weights=weights)


@pytest.mark.parametrize(
    ("name", "changes", "row"),
    [
        ("scaffold", {}, LINEAR_WEIGHTS),
        ("feddyn", {}, LINEAR_WEIGHTS),
        ("moon", {}, remembered_weights_type(block_weights_type())),
        ("gradma", PERSISTENT, remembered_weights_type(LINEAR_WEIGHTS)),
        (
            "gradma_w",
            {"persist_previous": True},
            remembered_weights_type(LINEAR_WEIGHTS),
        ),
    ],
)
def test_clients_that_remember_bring_a_row_and_report_the_next(name, changes, row):
    built = process(name, **changes)
    assert_takes(built, data_type_of(name, row))
    memory = metrics_of(built).client_work.memory
    assert tff.structure.name_list(memory) == ["client_index", "accepted", "row"]
    assert memory.client_index.is_equivalent_to(tff.TensorType(np.int32, [None]))
    assert memory.accepted.is_equivalent_to(tff.TensorType(np.bool_, [None]))
    rows = tff.types.structure_from_tensor_type_tree(
        lambda t: tff.TensorType(t.dtype, [None, *t.shape]), tff.to_type(row)
    )
    assert memory.row.is_equivalent_to(tff.to_type(rows))


@pytest.mark.parametrize("name", ["gradma_s", "gradma"])
def test_who_solves_quadratic_programs_measures_what_came_of_them(name):
    measured = metrics_of(process(name)).finalizer
    integers = ("qp_fallbacks", "qp_iterations", "num_active_rows", "num_memory_rows")
    assert {getattr(measured, key).dtype.type for key in integers} == {np.int32}
    assert measured.base_update_norm.dtype == measured.qp_residual.dtype == np.float32


def test_mifa_measures_whom_it_has_seen():
    measured = metrics_of(process("mifa")).aggregator
    assert measured.num_seen_clients.dtype == np.int32
    assert measured.num_non_finite_clients.dtype == np.int32


@pytest.mark.parametrize(
    "name",
    some_fast(["scaffold", "feddyn", "mifa", "gradma_s"], ["scaffold", "gradma_s"]),
)
def test_functional_and_variable_models_give_the_same_numbers(name):
    functional = run(process(name), NUM_CLIENTS, *some_rounds())
    in_variables = run(process(name, "variable"), NUM_CLIENTS, *some_rounds())
    np.testing.assert_allclose(
        in_variables.weights, functional.weights, rtol=1e-9, atol=1e-10
    )
    if functional.memory:
        for k in range(NUM_CLIENTS):
            np.testing.assert_allclose(
                in_variables.row(k), functional.row(k), rtol=1e-9, atol=1e-10
            )


@pytest.mark.parametrize("name", some_fast(["feddyn", "mifa"], ["feddyn"]))
def test_statistics_are_averaged_by_examples_and_trainable_weights_as_ever(name):
    numbers = (0, 3, 6, 2)
    cohorts = [cohort((0, 1)), cohort(numbers)]
    training = run(process(name, "statistics"), NUM_CLIENTS, *cohorts)
    expected = run(process(name), NUM_CLIENTS, *cohorts).weights
    np.testing.assert_allclose(training.weights, expected, rtol=1e-9, atol=1e-10)
    # Of the last batch, that of each client weighed by all its examples.
    last = [CLIENTS[k].x[(len(CLIENTS[k].y) - 1) // 2 * 2 :] for k in numbers]
    means = [np.mean(x, axis=0) for x in last]
    (found,) = process(name, "statistics").get_model_weights(training.state)[1]
    sizes = [len(CLIENTS[k].y) for k in numbers]
    np.testing.assert_allclose(found, problems.mean(means, sizes), rtol=1e-6)


# As others, but with all that may be hard on a runtime.
HARD = {
    "mifa": {"memory_dtype": "bfloat16"},
    "gradma_s": {"memory_dtype": "bfloat16"},
    "gradma": PERSISTENT,
}


@pytest.mark.parametrize(
    "name", some_fast(ALGORITHMS, ["scaffold", "mifa", "gradma", "fedmlb"])
)
def test_tffs_own_runtime_gives_the_same_rounds(name, native_context):
    built, model = process(name, **HARD.get(name, {})), model_of(name)
    cohorts = [cohort((0, 1), model), cohort((2, 0), model)]
    expected = run(built, NUM_CLIENTS, *cohorts)
    with tff.framework.get_context_stack().install(native_context):
        found = run(built, NUM_CLIENTS, *cohorts)
        found_weights = found.weights
    np.testing.assert_allclose(found_weights, expected.weights, rtol=1e-6, atol=1e-7)
    if expected.memory:
        for k in range(3):
            np.testing.assert_allclose(
                found.row(k), expected.row(k), rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("name", some_fast(["mifa", "gradma_s"], ["mifa"]))
def test_half_precision_memory_changes_little(name):
    exact = run(process(name), NUM_CLIENTS, *some_rounds()).weights
    half = run(process(name, **HARD[name]), NUM_CLIENTS, *some_rounds()).weights
    gap = np.max(np.abs(half - exact))
    assert 0 < gap < 0.01 * np.max(np.abs(exact - problems.initial_vector()))


@pytest.mark.parametrize(
    "name", some_fast(ALGORITHMS, ["scaffold", "moon", "mifa", "gradma"])
)
def test_state_restored_from_plain_arrays_goes_on_to_the_same_bits(name):
    # X43, but for the files.
    first, *others = some_rounds(model_of(name))
    training = run(process(name), NUM_CLIENTS, first)
    restored = Training(process(name), NUM_CLIENTS)
    flat = [np.asarray(leaf) for leaf in tf.nest.flatten(training.state)]
    restored.state = tf.nest.pack_sequence_as(restored.state, flat)
    if training.memory:
        restored.memory.restore(training.memory.save())
    for data in others:
        training.round(data)
        restored.round(data)
    np.testing.assert_array_equal(restored.weights, training.weights)
    np.testing.assert_array_equal(vector(restored.state), vector(training.state))


@pytest.mark.parametrize("name", ["scaffold", "moon", "mifa"])
def test_the_servers_rate_can_be_read_and_set(name):
    built = process(name)
    state = built.initialize()
    hparams = built.get_hparams(state)
    assert hparams["finalizer"]["learning_rate"] == 1.0
    hparams["finalizer"]["learning_rate"] = np.float32(0.0)
    state = built.set_hparams(state, hparams)
    training = Training(built, NUM_CLIENTS)
    before, training.state = training.weights, state
    training.round(cohort(model=model_of(name)))
    np.testing.assert_array_equal(training.weights, before)


EVERYBODY = {"num_clients": 3}
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
    with pytest.raises(TypeError, match="FunctionalModel, which has gradients.*found"):
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
    with pytest.raises(TypeError, match=r"Expected a .*Model.*found"):
        build(builder, 3)


@pytest.mark.parametrize(
    "builder",
    [tff_algos.build_scaffold, tff_algos.build_fed_dyn, tff_algos.build_gradma_s],
)
def test_an_unweighted_aggregator_is_refused_with_a_tip(builder):
    with pytest.raises(TypeError, match="as_weighted_aggregator"):
        build(
            builder,
            linear(),
            model_aggregator=tff.aggregators.UnweightedMeanFactory(),
        )


def test_a_memory_of_clients_that_no_memory_is_made_for_is_refused():
    with pytest.raises(ValueError, match="Expected a process whose clients have a"):
        tff_algos.ClientMemory.of_process(process("mifa"), NUM_CLIENTS)
