"""Momentum that opposes no remembered update: golden trace, SciPy's oracle, scales."""

import collections
import functools

import numpy as np
import pytest
import tensorflow_federated as tff
from tensorflow_federated import learning

from tests.testing import gradma_reference
from tests.testing.remembering_cohorts import vector
from tff_algos.finalizers import GradientMemory, build_gradient_memory_finalizer

SGD = learning.optimizers.build_sgdm
NUM_CLIENTS = 6
SHAPES = ((2, 2), (), (3,))
PARTS = [slice(0, 4), slice(4, 5), slice(5, 8)]
SIZE = 8
# N = 3, one client a round, m = 2, beta_1 = beta_2 = 1/2, eta_g = 1; in two dimensions.
GOLDEN_UPDATES = {0: (1, 0), 1: (-1, 1), 2: (0, -1)}
GOLDEN_COHORTS = [0, 1, 2, 0]
GOLDEN = [  # m, its corrected one, w
    ((1, 0), (1, 0), (-1, 0)),
    ((-0.5, 1), (0, 1), (-1, -1)),
    ((0, -0.5), (-0.25, -0.25), (-0.75, -0.75)),
    ((0.875, -0.125), (0.875, -0.125), (-1.625, -0.625)),
]


@functools.cache
def finalizer(shapes, dtype, server_rate=1.0, **changes):
    memory = {
        "memory_size": NUM_CLIENTS,
        "server_momentum": 0.5,
        "memory_decay": 0.5,
    } | changes
    tensors = tff.to_type(tuple(tff.TensorType(dtype, shape) for shape in shapes))
    weights_type = tff.StructWithPythonType(
        [("trainable", tensors), ("non_trainable", tff.to_type(()))],
        learning.models.ModelWeights,
    )
    return build_gradient_memory_finalizer(
        SGD(server_rate),
        weights_type,
        GradientMemory(num_clients=NUM_CLIENTS, **memory),
    )


def cut(values, shapes, dtype):
    """Vectors [..., 8] as a tuple of tensors [..., *shape]."""
    values, parts, start = np.asarray(values, dtype), [], 0
    for shape in shapes:
        stop = start + int(np.prod(shape))
        part = values[..., start:stop]
        parts.append(np.reshape(part, (*part.shape[:-1], *shape)))
        start = stop
    return tuple(parts)


class Server:
    """The finalizer between rounds; weights start at zero."""

    def __init__(self, shapes=SHAPES, dtype=np.float64, **changes):
        self.shapes, self.dtype = shapes, dtype
        self.finalizer = finalizer(shapes, dtype, **changes)
        self.state = self.finalizer.initialize()
        self.weights = learning.models.ModelWeights(
            cut(np.zeros(SIZE), shapes, dtype), ()
        )

    def round(self, updates, client_weights=None):
        """Takes the updates of clients by number; returns the measurements."""
        numbers, rows = list(updates), np.array(list(updates.values()), np.float64)
        client_weights = client_weights or [1.0] * len(numbers)
        mean = np.average(rows, axis=0, weights=client_weights)
        output = self.finalizer.next(
            self.state,
            self.weights,
            collections.OrderedDict(
                mean=cut(mean, self.shapes, self.dtype),
                rows=collections.OrderedDict(
                    client_index=np.array(numbers, np.int32),
                    weight=np.array(client_weights, np.float32),
                    update=cut(rows, self.shapes, self.dtype),
                ),
            ),
        )
        self.state, self.weights = output.state, output.result
        return output.measurements

    @property
    def w(self):
        return vector(self.weights.trainable)

    @property
    def corrected(self):
        return vector(self.state.momentum)

    @property
    def rows(self):
        """What is stored, [m, 8]."""
        rows = [np.asarray(tensor, np.float64) for tensor in self.state.rows]
        return np.concatenate([r.reshape(len(r), -1) for r in rows], axis=1)

    @property
    def memory(self):
        """What is remembered by client, as the next round will read it."""
        owners = np.asarray(self.state.ownership.owners).tolist()
        scaled = self.rows * np.asarray(self.state.scales)[:, np.newaxis]
        return {k: row for k, row in zip(owners, scaled, strict=True) if k >= 0}


def plane(*point):
    """A point of the plane as a vector [8]: in the first tensor and in the last."""
    return np.array([point[0], *[0.0] * 6, point[1]])


def random_rounds(count, seed=2, cohort_size=3):
    """Cohorts of clients whose updates often oppose each other's."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=[NUM_CLIENTS, SIZE])
    own -= np.mean(own, axis=0)
    return [
        {
            int(k): own[k] + 0.5 * rng.normal(size=SIZE)
            for k in rng.permutation(NUM_CLIENTS)[:cohort_size]
        }
        for _ in range(count)
    ]


def assert_close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def test_rounds_follow_the_trace_computed_by_hand():
    server = Server(memory_size=2)
    for client, (momentum, corrected, w) in zip(GOLDEN_COHORTS, GOLDEN, strict=True):
        measured = server.round({client: plane(*GOLDEN_UPDATES[client])})
        assert_close(server.corrected, plane(*corrected))
        assert_close(server.w, plane(*w))
        assert measured["base_update_norm"] == pytest.approx(np.linalg.norm(momentum))
        assert measured["update_norm"] == pytest.approx(np.linalg.norm(corrected))
    assert server.memory.keys() == {2, 0}
    # Once more halved, after the round.
    assert_close(server.memory[2], plane(0, -0.25))
    assert_close(server.memory[0], plane(0.5, 0))


@pytest.mark.parametrize(
    ("memory_size", "qp_scope"),
    [(NUM_CLIENTS, "global"), (2, "global"), (4, "per_tensor")],
)
def test_rounds_of_clients_that_come_and_go_are_those_of_scipy(memory_size, qp_scope):
    changes = {"memory_size": memory_size, "qp_scope": qp_scope}
    defaults = {"memory_size": NUM_CLIENTS, "qp_scope": "global"}
    server = Server(**{k: v for k, v in changes.items() if v != defaults[k]})
    parts = PARTS if qp_scope == "per_tensor" else [slice(None)]
    reference = gradma_reference.Server(memory_size, np.zeros(SIZE), parts=parts)
    num_corrected = 0
    for updates in random_rounds(8):
        measured = server.round(updates)
        momentum = reference.round(updates)
        assert_close(server.corrected, reference.corrected)
        assert_close(server.w, reference.w)
        assert server.memory.keys() == reference.rows.keys()
        for client, row in reference.rows.items():
            assert_close(server.memory[client], row)
        norm = np.linalg.norm(momentum)
        assert measured["base_update_norm"] == pytest.approx(norm)
        assert measured["num_memory_rows"] == len(reference.rows)
        assert measured["qp_fallbacks"] == 0
        assert measured["qp_residual"] < 1e-9
        num_corrected += measured["num_active_rows"] > 0
    assert num_corrected >= 2


def test_clients_weigh_in_the_mean_and_not_in_the_memory():
    server = Server()
    server.round({3: plane(1, 0), 1: plane(0, 2)}, client_weights=[1.0, 3.0])
    assert_close(server.w, plane(-0.25, -1.5))
    assert_close(server.memory[3], plane(0.5, 0))
    assert_close(server.memory[1], plane(0, 1))


def test_clients_of_weight_zero_own_no_row():
    server = Server()
    server.round({0: plane(1, 2), 5: plane(0, 0)}, client_weights=[1.0, 0.0])
    assert server.memory.keys() == {0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_no_row_is_opposed_the_momentum_stays_as_it_is_to_the_bit(dtype):
    server, rng = Server(dtype=dtype), np.random.default_rng(0)
    expected = np.zeros(SIZE, dtype)
    for client in range(4):
        update = rng.uniform(0.1, 1.0, size=SIZE).astype(dtype)
        measured = server.round({client: update})
        expected = np.asarray(0.5, dtype) * expected + update
        np.testing.assert_array_equal(server.corrected, expected.astype(np.float64))
        assert measured["num_active_rows"] == measured["qp_iterations"] == 0


def test_without_rows_it_is_heavy_ball():
    server, velocity = Server(memory_size=0), 0.0
    for updates in random_rounds(3):
        measured = server.round(updates)
        velocity = 0.5 * velocity + np.mean(list(updates.values()), axis=0)
        assert_close(server.corrected, velocity)
    assert measured["num_memory_rows"] == measured["qp_iterations"] == 0


def test_without_rows_and_momentum_it_is_a_step_along_the_mean():
    server, expected = Server(memory_size=0, server_momentum=0.0, server_rate=0.5), 0.0
    for updates in random_rounds(3):
        server.round(updates)
        expected = expected - 0.5 * np.mean(list(updates.values()), axis=0)
        assert_close(server.w, expected)


def test_without_momentum_the_first_round_of_agreeing_clients_is_the_mean():
    rng = np.random.default_rng(0)
    updates = {k: rng.uniform(0, 1, size=SIZE) for k in range(NUM_CLIENTS)}
    server = Server(server_momentum=0.0)
    server.round(updates)
    assert_close(server.w, -np.mean(list(updates.values()), axis=0))


def test_forgetting_at_once_leaves_only_the_clients_of_the_round():
    server = Server(memory_decay=0.0)
    server.round({0: plane(0, 1)})
    np.testing.assert_array_equal(server.memory[0], np.zeros(SIZE))
    # It opposes what client 0 sent, of which nothing is left.
    server.round({1: plane(0, -4)})
    assert_close(server.corrected, plane(0, -3.5))
    # Client 0 is no new owner, and starts from nothing all the same.
    measured = server.round({0: plane(3, 0)})
    assert_close(server.corrected, plane(3, -1.75))
    assert measured["num_memory_rows"] == 2


def test_who_forgets_nothing_adds_up():
    server = Server(memory_decay=1.0)
    for _ in range(3):
        server.round({4: plane(1, 2)})
    assert_close(server.memory[4], plane(3, 6))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_updates_of_another_scale_give_a_momentum_of_that_scale(scale):
    one, other = Server(), Server()
    for updates in random_rounds(5):
        measured = one.round(updates)
        other_measured = other.round({k: scale * u for k, u in updates.items()})
        assert_close(other.corrected / scale, one.corrected)
        assert other_measured["num_active_rows"] == measured["num_active_rows"]
    assert measured["num_active_rows"] > 0


def test_the_order_of_the_clients_does_not_matter_where_all_have_a_row():
    one, other = Server(), Server()
    for updates in random_rounds(4):
        one.round(updates)
        other.round(dict(reversed(updates.items())))
        assert_close(other.w, one.w)


def test_each_tensor_by_itself_is_the_whole_if_there_is_one_tensor():
    whole = Server(((2, 4),))
    by_tensor = Server(((2, 4),), qp_scope="per_tensor")
    for updates in random_rounds(5):
        measured = whole.round(updates)
        by_tensor.round(updates)
        np.testing.assert_array_equal(by_tensor.w, whole.w)
    assert measured["num_active_rows"] > 0


@pytest.mark.parametrize("qp_scope", ["global", "per_tensor"])
def test_tensors_without_elements_change_nothing(qp_scope):
    server = Server(qp_scope=qp_scope)
    other = Server((*SHAPES, (0, 3)), qp_scope=qp_scope)
    for updates in random_rounds(5):
        server.round(updates)
        measured = other.round(updates)
        np.testing.assert_array_equal(other.w, server.w)
    assert measured["num_active_rows"] > 0


def test_the_corrected_momentum_keeps_the_margin_from_every_row():
    server, num_corrected = Server(qp_margin=0.2), 0
    for updates in random_rounds(4, seed=0, cohort_size=2):
        measured = server.round(updates)
        assert measured["qp_fallbacks"] == 0
        products = [
            row @ server.corrected / np.linalg.norm(row)
            for row in server.memory.values()
        ]
        closest = min(products) / measured["base_update_norm"]
        if measured["num_active_rows"]:
            num_corrected += 1
            assert closest == pytest.approx(0.2, abs=1e-6)
        else:
            assert closest > 0.2
    assert num_corrected >= 2


def test_a_margin_that_no_vector_has_is_counted_and_the_momentum_stays():
    server = Server(qp_margin=0.2)
    server.round({0: plane(1, 0)})
    # Opposite rows: no vector has a positive cosine with both.
    measured = server.round({1: plane(-3, 0)})
    assert measured["qp_fallbacks"] == 1 and measured["num_rejected_rounds"] == 0
    assert measured["num_active_rows"] == 0
    assert_close(server.corrected, plane(-2.5, 0))
    assert server.memory.keys() == {0, 1}


def test_inner_products_that_are_carried_along_do_not_drift():
    server, worst = Server(dtype=np.float32), 0.0
    for updates in random_rounds(160, cohort_size=2):
        server.round(updates)
        gram = server.rows @ server.rows.T
        gap = np.max(np.abs(server.state.grams[0] - gram)) / np.max(np.diag(gram))
        worst = max(worst, gap)
    assert server.state.num_rounds == 160
    assert worst < 1e-6


def test_half_precision_rows_change_the_momentum_by_their_rounding_only():
    exact = Server(dtype=np.float32)
    half = Server(dtype=np.float32, memory_dtype="bfloat16")
    for updates in random_rounds(6):
        exact.round(updates)
        half.round(updates)
    assert {str(rows.dtype) for rows in half.state.rows} == {"bfloat16"}
    assert np.max(np.abs(half.rows - exact.rows)) < 0.01 * np.max(np.abs(exact.rows))
    gap = np.linalg.norm(half.w - exact.w) / np.linalg.norm(exact.w)
    assert 0 < gap < 0.02


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_rejected_round_changes_nothing(bad):
    server = Server(dtype=np.float32)
    first, second = random_rounds(2)
    server.round(first)
    state, w = server.state, server.w
    # Of 1e30 the norm overflows.
    measured = server.round({0: np.full(SIZE, bad), 1: np.ones(SIZE)})
    assert measured["num_rejected_rounds"] == 1
    np.testing.assert_array_equal(vector(server.state), vector(state))
    np.testing.assert_array_equal(server.w, w)
    assert server.round(second)["num_rejected_rounds"] == 0


@pytest.mark.parametrize("number", [-1, NUM_CLIENTS])
def test_a_number_that_no_client_has_is_refused(number):
    with pytest.raises(Exception, match=rf"\[0, {NUM_CLIENTS}\)"):
        Server().round({0: plane(1, 0), number: plane(0, 1)})
