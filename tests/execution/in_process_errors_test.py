"""What the in-process context says when a client fails or a value is wrong."""

import collections
import gc
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.execution import client_passes

NUMBERS = tff.SequenceType(np.int64)


@tff.tensorflow.computation(NUMBERS)
def _checked_sum(data):
    def check(x):
        with tf.control_dependencies(
            [tf.debugging.assert_less(x, tf.constant(100, tf.int64), "over the top")]
        ):
            return tf.identity(x)

    return data.map(check).reduce(tf.constant(0, tf.int64), lambda a, b: a + b)


@tff.federated_computation(tff.FederatedType(NUMBERS, tff.CLIENTS))
def _checked_total(data):
    return tff.federated_sum(tff.federated_map(_checked_sum, data))


def numbers(*lists):
    return [tf.data.Dataset.from_tensor_slices(np.array(x, np.int64)) for x in lists]


@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_client_that_fails_is_named_and_the_context_goes_on(num_threads):
    with execution.in_process_context(num_threads=num_threads):
        data = numbers([1, 2], [3], [4], [5, 200], [6], [7], [300], [8], [9], [10])
        with pytest.raises(execution.ClientError, match="over the top") as raised:
            _checked_total(data)
        assert raised.value.position == 3
        assert str(raised.value).startswith("Client 3 of 10: ")
        assert isinstance(raised.value.__cause__, tf.errors.InvalidArgumentError)
        # Processes send errors to each other in this way.
        sent = pickle.loads(pickle.dumps(raised.value))
        assert (sent.position, sent.cause) == (3, raised.value.cause)
        assert str(sent) == str(raised.value)
        assert _checked_total(numbers([1, 2], [3])) == 6


def test_a_client_that_fails_outside_of_its_data_is_named():
    @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
    def invert(x):
        return tf.reduce_sum(tf.debugging.check_numerics(1 / x, "by zero"))

    @tff.federated_computation(
        tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS)
    )
    def total(x):
        return tff.federated_map(invert, x)

    with execution.in_process_context():
        with pytest.raises(execution.ClientError, match="by zero") as raised:
            total([[1.0], [4.0, 1.0], [0.0]])
        assert raised.value.position == 2
        assert total([[1.0], [4.0, 1.0]]) == [1.0, 1.25]


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.NotFoundError(
            None,
            None,
            "No algorithm worked! Error messages: "
            + 20 * "Profiling failure on CUDNN engine: RESOURCE_EXHAUSTED: No memory. ",
        ),
    ],
)
def test_memory_that_ran_out_is_told_with_what_takes_less(error):
    told = client_passes.cause(error)
    advice = "memory ran out; run fewer clients per round, smaller batches or a smaller model"
    assert told.startswith(f"{advice}. TensorFlow: {error.message[:25]}")
    assert len(told) < 300


def test_a_python_function_that_is_no_longer_there_is_told_and_one_that_is_runs():
    def call(x):
        tripled = tf.numpy_function(lambda x: np.float32(3 * x), [x], tf.float32)
        return tf.ensure_shape(tripled, [])

    def at_clients(function):
        work = tff.tensorflow.computation(function, np.float32)

        @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
        def computation(values):
            return tff.federated_map(work, values)

        return computation

    kept = tf.function(call, input_signature=[tf.TensorSpec([], tf.float32)])
    kept.get_concrete_function()
    with execution.in_process_context():
        assert at_clients(kept)([1.0, 2.0]) == [3.0, 6.0]
        traced = at_clients(call)
        gc.collect()  # TensorFlow frees the function with its graph.
        with pytest.raises(
            execution.ClientError, match=r"^Client 0 of 2: the Python function of a "
        ):
            traced([1.0, 2.0])


def test_what_fails_at_the_server_is_tensorflows_error_without_its_place():
    @tff.tensorflow.computation(np.float32)
    def positive(x):
        with tf.control_dependencies([tf.debugging.assert_positive(x, "too low")]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(x):
        return tff.federated_map(positive, tff.federated_sum(x))

    with execution.in_process_context():
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"^assertion failed: \[too low[^\n]*$",
        ):
            total([-1.0, -2.0])
        assert total([1.0, 2.0]) == 3.0
        with pytest.raises(TypeError, match=r"^Expected an argument of type .* None"):
            total(None)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (NUMBERS, [1, 2], tf.data.Dataset.from_tensors("text")),
        (NUMBERS, [1, 2], tf.data.Dataset.from_tensors([1, 2])),
        (NUMBERS, [1, 2], 3),
        ((np.float32, [2]), [1.0, 2.0], [1.0, 2.0, 3.0]),
        (np.int32, 1, "text"),
        (
            collections.OrderedDict(a=np.int32),
            collections.OrderedDict(a=1),
            collections.OrderedDict(a=1, b=2),
        ),
    ],
)
def test_a_client_whose_value_is_of_another_type_is_named(spec, good, bad):
    @tff.federated_computation(tff.FederatedType(spec, tff.CLIENTS))
    def through(x):
        return x

    with execution.in_process_context():
        with pytest.raises(TypeError, match=r"Client 2 of 4: "):
            through([good, good, bad, good])
        assert len(through([good, good])) == 2


def test_an_argument_with_other_elements_is_a_type_error_that_names_it():
    both = collections.OrderedDict(a=np.int32, b=np.int32)

    @tff.tensorflow.computation(collections.OrderedDict(of=both))
    def subtract(x):
        return x["of"]["a"] - x["of"]["b"]

    with execution.in_process_context():
        with pytest.raises(
            TypeError, match="^of: Expected 2 elements for <a=int32,b=int32>, found 1"
        ):
            subtract(collections.OrderedDict(of=(1,)))
        # Positions decide, as in TFF's own runtime.
        assert subtract(collections.OrderedDict(of=(3, 1))) == 2
        others = collections.OrderedDict(x=3, y=1)
        assert subtract(collections.OrderedDict(of=others)) == 2


def test_values_for_other_numbers_of_clients_are_an_error():
    @tff.federated_computation(
        tff.FederatedType(np.int32, tff.CLIENTS),
        tff.FederatedType(np.int32, tff.CLIENTS),
    )
    def both(x, y):
        return tff.federated_sum(x), tff.federated_sum(y)

    with execution.in_process_context(), pytest.raises(ValueError, match="cardinalit"):
        both([1, 2], [1, 2, 3])
