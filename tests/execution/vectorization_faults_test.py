"""Clients together give what each gives alone, whatever TensorFlow vectorizes wrongly."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import (
    ClientError,
    InProcessContext,
    compilation,
    plan,
    vectorization,
)


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


def _embedding_gradient(ids):
    weights = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(tf.gather(weights, ids) ** 2)
    return tf.convert_to_tensor(tape.gradient(loss, weights))


# What `tf.vectorized_map` computes wrongly, without an error.
_WRONG = {
    "a formatted tensor": (lambda x: tf.strings.format("{}", x), _INTEGERS),
    "rows of segments": (
        lambda x: tf.sparse.segment_sum(tf.stack([x, 2 * x, 3 * x]), x, [0, 0, 1]),
        _INTEGERS,
    ),
    "a list's elements at some places": (
        lambda x: tf.TensorArray(tf.int32, 3).unstack(x).gather([2, 0]),
        _INTEGERS,
    ),
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
    "a client's own value to pad with": (
        lambda x: tf.pad(x, [[1, 1]], constant_values=x[0]),
        _INTEGERS,
    ),
    "a roll by a client's own shift": (lambda x: tf.roll(x, x[0], 0), _INTEGERS),
}
_RIGHT = {
    "computed segments, some negative": (
        lambda x: tf.math.unsorted_segment_sum(tf.ones([3]), x - 1, 2),
        _INTEGERS,
    ),
    "zeros to pad with": (lambda x: tf.pad(x, [[1, 1]]), _INTEGERS),
    "a value to pad with": (
        lambda x: tf.pad(x, [[1, 1]], constant_values=7),
        _INTEGERS,
    ),
    "a roll along a negative axis": (lambda x: tf.roll(x, 1, -1), _INTEGERS),
    "a mirrored pad": (lambda x: tf.pad(x, [[1, 1]], "SYMMETRIC"), _INTEGERS),
    "gradient of an embedding": (lambda x: _embedding_gradient(x), _INTEGERS),
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
        vectorization.NotVectorizableError,
        match="wrongly|statistics of inference|out of range",
    ):
        _vectorize(_mapped(*_WRONG[case]))


@pytest.mark.parametrize("case", _RIGHT)
def test_their_neighbors_are_vectorized(case):
    _vectorize(_mapped(*_RIGHT[case]))


def _example(length):
    feature = tf.train.Feature(
        int64_list=tf.train.Int64List(value=range(1, length + 1))
    )
    features = tf.train.Features(feature={"v": feature})
    return tf.train.Example(features=features).SerializeToString()


def test_parsed_examples_keep_each_clients_length():
    spec = {"v": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}

    def mean(serialized):
        parsed = tf.io.parse_single_example(serialized, spec)
        return tf.reduce_mean(tf.cast(parsed["v"], tf.float32))

    computation = _mapped(mean, tff.TensorType(np.str_))
    examples = [_example(length) for length in (1, 2, 3, 4)]
    found = _by_client(computation, examples, batch_clients=True)
    assert found == [1.0, 1.5, 2.0, 2.5]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda ids: tf.math.unsorted_segment_sum(tf.ones([3]), ids, 2),
            r"segment_ids\[2\] = 2 is out of range",
        ),
        (
            # Of more rows than there are segments.
            lambda ids: tf.math.unsorted_segment_sum(
                tf.gather(tf.ones([5]), ids), ids, 2
            ),
            r"segment_ids\[2\] = 2 is out of range",
        ),
        (
            lambda ids: tf.sparse.segment_sum(tf.stack([ids, ids]), ids, [0, 0, 1]),
            r"Bad: indices\[2\] == 2 out of range",
        ),
    ],
)
def test_what_is_out_of_range_is_an_error_and_not_the_next_clients(function, message):
    computation = _mapped(function, _INTEGERS)
    clients = [np.array(ids, np.int32) for ids in ([0, 1, 2], *[[0, 0, 0]] * 3)]
    with pytest.raises(ClientError, match=f"^Client 0 of 4: {message}"):
        _by_client(computation, clients, batch_clients=None)
