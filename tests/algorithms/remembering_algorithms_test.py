"""What holds for every algorithm that remembers: types, models, runtimes, clients."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import (
    block_problems,
    problems,
    remembering_identities,
    remembering_rounds,
)
from tests.testing.remembering_cohorts import Training, run, vector
from tests.testing.remembering_identities import after, assert_same_bits
from tests.testing.remembering_processes import (
    ALGORITHMS,
    CLIENTS,
    NUM_CLIENTS,
    cohort,
    invalid_clients,
    model_of,
    process,
    some_rounds,
)
from tests.testing.speed import some_fast

LINEAR_WEIGHTS = (tff.TensorType(np.float64, [5]), tff.TensorType(np.float64))


def scalar_clients():
    """F_1 = (w - 1)^2 / 2 and F_2 = (w - 3)^2 / 2 in the bias; two local steps."""
    nothing = np.zeros((1, problems.NUM_FEATURES))
    return {
        k: problems.Client(nothing, np.array([target])).batches(1, epochs=2)
        for k, target in enumerate((1.0, 3.0))
    }


GOLDEN = {  # The server's vector, the clients' ones, w; of two rounds.
    "scaffold": [
        (-1.9, (-0.95, -2.85), 0.38),
        (-1.539, (-0.5415, -2.5365), 0.6878),
    ],
    "feddyn": [
        (-0.185, (-0.0925, -0.2775), 0.74),
        (-0.2844375, None, 1.50775),
    ],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_scaffold_and_feddyn_follow_a_trace_computed_by_hand(name):
    training = Training(process(name, num_clients=2), 2)
    training.set_weights(np.zeros(5), np.float64(0))
    for mean, own, w in GOLDEN[name]:
        training.round(scalar_clients())
        held = training.state.client_work.shared
        if name == "feddyn":
            held = training.state.finalizer
        remembering_rounds.assert_close(vector(held), [0, 0, 0, 0, 0, mean], rtol=1e-6)
        remembering_rounds.assert_close(training.weights, [0, 0, 0, 0, 0, w], rtol=1e-6)
        if own is not None:
            remembering_rounds.assert_close(
                [training.row(k)[-1] for k in range(2)], own, rtol=1e-6
            )


def minimum_of_all():
    """Where the mean of all clients' losses, each client's alike, is smallest."""
    features = [np.column_stack([c.x, np.ones(len(c.y))]) for c in CLIENTS]
    hessian = sum(f.T @ f / len(f) for f in features)
    target = sum(f.T @ c.y / len(f) for f, c in zip(features, CLIENTS, strict=True))
    return np.linalg.solve(hessian, target)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_the_minimum_of_all_is_where_it_stands_still(name):
    optimum = minimum_of_all()
    gradients = np.array([client.gradient(optimum) for client in CLIENTS])
    training = Training(process(name), NUM_CLIENTS)
    training.set_weights(optimum[:-1], optimum[-1])
    training.memory.update(
        {
            "client_index": np.arange(NUM_CLIENTS),
            "accepted": np.full(NUM_CLIENTS, True),
            "row": (gradients[:, :-1], gradients[:, -1]),
        }
    )
    # Steps of whole gradients, of some clients.
    training.round(cohort((0, 3, 5), batch_size=None, epochs=4))
    remembering_rounds.assert_close(training.weights, optimum)
    remembering_rounds.assert_close(
        [training.row(k) for k in range(NUM_CLIENTS)], gradients
    )
    assert np.max(np.abs(gradients)) > 0.1


# Momentum 0 is one optimizer for all three.
@pytest.mark.parametrize(
    "name",
    [
        "mifa",
        pytest.param("moon", marks=pytest.mark.slow),
        pytest.param("fedmlb", marks=pytest.mark.slow),
    ],
)
def test_with_momentum_zero_it_is_the_one_without_momentum_to_the_bit(name):
    data = some_rounds(model_of(name))
    still = process(f"{name}m", server_momentum=0.0)
    assert_same_bits(still, process(name), *data)


def means_over_all(name):
    """The mean of all clients' rows, and what the server holds, round after round."""
    training = Training(process(name), NUM_CLIENTS)
    for data in [*some_rounds(), cohort() | invalid_clients(), *some_rounds()]:
        training.round(data)
        rows = [training.row(k) for k in range(NUM_CLIENTS)]
        state = training.state
        mean = state.client_work.shared if name == "scaffold" else state.finalizer
        yield np.mean(rows, axis=0), vector(mean)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_the_server_holds_the_mean_of_what_all_clients_remember(name):
    norms = []
    for mean, held in means_over_all(name):
        remembering_identities.assert_close(held, mean)
        norms.append(np.linalg.norm(mean))
    assert min(norms) > 0.02 and np.max(np.abs(np.diff(norms))) > 5e-3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_order_of_clients_does_not_matter(name):
    in_order = some_rounds(model_of(name))
    permuted = [dict(reversed(data.items())) for data in in_order]
    remembering_identities.assert_close(
        after(process(name), *permuted), after(process(name), *in_order)
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_invalid_clients_are_as_good_as_absent(name):
    model = model_of(name)
    data, bad = cohort(model=model), invalid_clients(model)
    mixed = {4: bad[4], 0: data[0], 5: bad[5], **data, 6: bad[6]}
    training = Training(process(name), NUM_CLIENTS)
    for _ in range(2):
        output = training.round(mixed)
        measured = output.metrics["client_work"]
        assert measured["num_non_finite_clients"] == 2
        assert measured["num_empty_clients"] == 1
        assert np.isfinite(measured["train"]["loss"])
    remembering_identities.assert_close(
        training.weights, after(process(name), data, data)
    )
    if training.memory is not None:
        rows = [training.row(k) for k in range(NUM_CLIENTS)]
        assert all(np.any(row) for row in rows[:4]) and not np.any(rows[4:])


@pytest.mark.parametrize("name", ["scaffold", "gradma_s", "gradma_w"])
def test_a_client_whose_update_is_zero_counts_in_the_mean(name):
    start = problems.initial_vector()
    # Of inputs of zero the model predicts its bias.
    content = problems.Client(
        np.zeros((8, problems.NUM_FEATURES)), np.full(8, start[-1])
    )
    data, alone = cohort(), {4: content.batches(2, 2)}
    np.testing.assert_array_equal(after(process(name), alone), start)
    # SCAFFOLD's clients count alike.
    share = 4 / 5 if name == "scaffold" else 22 / 30
    remembering_identities.assert_close(
        after(process(name), data | alone) - start,
        share * (after(process(name), data) - start),
    )


def assert_changes_nothing(process, first, rejected):
    """Asserts that a round is rejected, and the next one goes on without it."""
    training = run(process, NUM_CLIENTS, first)
    before = training.state
    rows = training.memory and [training.row(k) for k in range(NUM_CLIENTS)]
    output = training.round(rejected)
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    for part in ("global_model_weights", "aggregator", "finalizer"):
        np.testing.assert_array_equal(
            vector(getattr(training.state, part)), vector(getattr(before, part))
        )
    # The client work counts the round.
    changed = vector(training.state.client_work) - vector(before.client_work)
    assert changed[0] == 1 and not np.any(changed[1:])
    if rows:
        np.testing.assert_array_equal(
            [training.row(k) for k in range(NUM_CLIENTS)], rows
        )
    training.round(first)
    np.testing.assert_array_equal(training.weights, after(process, first, first))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_without_valid_clients_changes_nothing(name):
    model = model_of(name)
    bad = invalid_clients(model)
    # Of clients who have been valid, so that there is something to forget.
    bad = {k: bad[4 + k] for k in range(3)}
    assert_changes_nothing(process(name), cohort(model=model), bad)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "mifa", "gradma_s"])
def test_a_round_that_overflows_at_the_server_changes_nothing(name):
    # An update of 1e159 is finite, and its square is not.
    x = np.full((1, problems.NUM_FEATURES), 1e80)
    huge = problems.Client(x, np.ones(1)).batches()
    assert_changes_nothing(process(name), cohort(), {0: huge, 1: cohort()[1]})


EXAMPLES = {
    "linear": ((np.float64, [None, 5]), (np.float64, [None])),
    "blocks": ((np.float64, [None, 5]), (np.int32, [None])),
}
# As of the test against NumPy.
PERSISTENT = {
    "memory_size": 3,
    "qp_scope": "per_tensor",
    "persist_previous": True,
    "server_momentum": 0.25,
    "memory_decay": 0.75,
}


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


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("scaffold", None),
        ("moon", None),
        ("mifa", None),
        ("gradma_s", None),
        ("fedavg", "statistics"),
    ],
)
def test_the_servers_rate_can_be_read_and_set(name, model):
    built = process(name, model)
    state = built.initialize()
    hparams = built.get_hparams(state)
    assert hparams["finalizer"]["learning_rate"] == 1.0
    hparams["finalizer"]["learning_rate"] = np.float32(0.0)
    state = built.set_hparams(state, hparams)
    training = Training(built, NUM_CLIENTS)
    before, training.state = training.weights, state
    training.round(cohort(model=model_of(name)))
    np.testing.assert_array_equal(training.weights, before)


def test_a_memory_of_clients_that_no_memory_is_made_for_is_refused():
    with pytest.raises(ValueError, match="Expected a process whose clients have a"):
        tff_algos.ClientMemory.of_process(process("mifa"), NUM_CLIENTS)
