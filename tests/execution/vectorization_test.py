"""What vectorizing a client's work finds: its reductions, and which aggregates are sums."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import client_pass_of, process
from tff_algos.execution import InProcessContext, compilation, plan, vectorization


def test_the_weights_of_the_sum_of_reductions_is_the_number_of_clients():
    work = vectorization.vectorize(client_pass_of(process("linear", "sgd")).fragment)
    assert len(work.reductions) == 1
    assert work.data_inputs != (None,)
    shapes = [spec.shape.as_list() for spec in work.reductions[0].state_specs]
    assert [2, 3] in shapes


def test_aggregates_of_learning_processes_are_sums():
    aggregates = client_pass_of(process("linear", "sgd")).aggregates
    assert [vectorization.is_sum(aggregate) for aggregate in aggregates] == [True] * 3


def _aggregate_of(accumulate):
    zero = tff.tensorflow.computation(lambda: 0.0)
    merge = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))
    report = tff.tensorflow.computation(lambda a: a, np.float32)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def aggregate(values):
        return tff.federated_aggregate(
            values,
            zero(),
            tff.tensorflow.computation(accumulate, (np.float32, np.float32)),
            merge,
            report,
        )

    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(aggregate).steps
        if isinstance(step, plan.ClientPass)
    ]
    return client_pass.aggregates[0]


@pytest.mark.parametrize(
    ("accumulate", "expected"),
    [
        (lambda total, value: total + value, True),
        (lambda total, value: value + total, True),
        (lambda total, value: total + total, False),
        (lambda total, value: value + value, False),
        (lambda total, value: total - value, False),
        (lambda total, value: total + 2.0 * value, False),
        (lambda total, value: tf.maximum(total, value), False),
    ],
)
def test_only_a_plain_sum_counts_as_a_sum(accumulate, expected):
    assert vectorization.is_sum(_aggregate_of(accumulate)) is expected


def _mapped(function, spec):
    work = tff.tensorflow.computation(function, spec)

    @tff.federated_computation(tff.FederatedType(spec, tff.CLIENTS))
    def at_clients(values):
        return tff.federated_map(work, values)

    return at_clients


def _vectorize(computation):
    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(computation).steps
        if isinstance(step, plan.ClientPass)
    ]
    vectorization.vectorize(client_pass.fragment)


def _by_client(computation, values, *, batch_clients):
    context = InProcessContext(batch_clients=batch_clients)
    with tff.framework.get_context_stack().install(context):
        return computation(values)


_INTEGERS = tff.TensorType(np.int32, (3,))
_IMAGES = tff.TensorType(np.float32, (2, 3, 3, 3))


def _normalized(images, is_training, index):
    given = None if is_training else [2.0, 3.0, 4.0]
    scale, offset = [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]
    return tf.compat.v1.nn.fused_batch_norm(
        images, scale, offset, given, given, is_training=is_training
    )[index]


def _gradient(function):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(loss, x)

    return gradient


# What `tf.vectorized_map` computes wrongly, without an error.
_WRONG = {
    "a value to pad with": (
        lambda x: tf.pad(x, [[1, 1]], constant_values=7),
        _INTEGERS,
    ),
    "a roll along a negative axis": (lambda x: tf.roll(x, 1, -1), _INTEGERS),
    "a formatted tensor": (lambda x: tf.strings.format("{}", x), _INTEGERS),
    "given statistics": (lambda x: _normalized(x, False, 1), _IMAGES),
    "gradient with given statistics": (
        _gradient(lambda x: _normalized(x, False, 0)),
        _IMAGES,
    ),
}
# Which it refuses, with errors of several kinds.
_REFUSED = {
    "an array read at a place of the client's": (
        lambda x: tf.TensorArray(tf.int32, 3).unstack(x).read(x[0] % 3),
        _INTEGERS,
    ),
}
_RIGHT = {
    "zeros to pad with": (lambda x: tf.pad(x, [[1, 1]]), _INTEGERS),
    "a mirrored pad": (lambda x: tf.pad(x, [[1, 1]], "SYMMETRIC"), _INTEGERS),
    "negative segments": (
        lambda x: tf.math.unsorted_segment_sum(tf.ones([3]), x - 1, 2),
        _INTEGERS,
    ),
    "a reversed cumulative product": (
        lambda x: tf.math.cumprod(x, -1, exclusive=True, reverse=True),
        _INTEGERS,
    ),
    "a gather along a negative axis": (
        lambda x: tf.gather(tf.stack([x, x]), [2, 0], axis=-1),
        _INTEGERS,
    ),
    "normalization": (lambda x: _normalized(x, True, 0), _IMAGES),
    "gradient of normalization": (
        _gradient(lambda x: _normalized(x, True, 0) * x),
        _IMAGES,
    ),
    "normalization with given statistics": (
        lambda x: _normalized(x, False, 0),
        _IMAGES,
    ),
}


@pytest.mark.parametrize("case", [*_WRONG, *_REFUSED, *_RIGHT])
def test_ops_of_many_clients_give_what_they_give_for_each(case):
    computation = _mapped(*{**_WRONG, **_REFUSED, **_RIGHT}[case])
    spec = computation.type_signature.parameter.member
    generator = np.random.default_rng(0)
    values = [
        generator.integers(0, 3, spec.shape).astype(spec.dtype.type) for _ in range(5)
    ]
    together = _by_client(computation, values, batch_clients=True)
    alone = _by_client(computation, values, batch_clients=False)
    for ours, expected in zip(together, alone, strict=True):
        if isinstance(expected, bytes):
            assert ours == expected
        else:
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", _WRONG)
def test_ops_that_tensorflow_vectorizes_wrongly_run_one_by_one(case):
    with pytest.raises(
        vectorization.NotVectorizableError, match="wrongly|statistics of inference"
    ):
        _vectorize(_mapped(*_WRONG[case]))


@pytest.mark.parametrize("case", _RIGHT)
def test_their_neighbors_are_vectorized(case):
    _vectorize(_mapped(*_RIGHT[case]))
