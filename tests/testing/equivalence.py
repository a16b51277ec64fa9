"""Runs computations on TFF's own runtime and in this process, and compares."""

import functools

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution

# Sums of floats in another order, and ops fused otherwise, differ by roundings.
RTOL = 1e-5
ATOL = 1e-7


@functools.cache
def in_process(**kwargs) -> execution.InProcessContext:
    """The in-process context that all comparisons with these arguments share."""
    return execution.InProcessContext(num_threads=3, **kwargs)


def call(context, computation, *args, **kwargs):
    """Calls a computation in a context."""
    with tff.framework.get_context_stack().install(context):
        return computation(*args, **kwargs)


def assert_same(found, expected, rtol=RTOL, atol=ATOL, at="result"):
    """Asserts that two results are equal: Python types, dtypes, shapes and values."""
    if isinstance(expected, tf.data.Dataset):
        assert isinstance(found, tf.data.Dataset), at
        assert found.element_spec == expected.element_spec, at
        found, expected = (
            list(found.as_numpy_iterator()),
            list(expected.as_numpy_iterator()),
        )
    assert type(found) is type(expected), at
    if attrs.has(type(expected)):
        names = [field.name for field in attrs.fields(type(expected))]
        pairs = [(n, getattr(found, n), getattr(expected, n)) for n in names]
    elif isinstance(expected, dict):
        assert list(found) == list(expected), at
        pairs = [(key, found[key], expected[key]) for key in expected]
    elif isinstance(expected, list | tuple | tff.structure.Struct):
        assert len(found) == len(expected), at
        pairs = zip(range(len(expected)), found, expected, strict=True)
    else:
        _assert_same_array(found, expected, rtol, atol, at)
        return
    for name, one, other in pairs:
        assert_same(one, other, rtol, atol, f"{at}[{name!r}]")


def _assert_same_array(found, expected, rtol, atol, at):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype, at
    assert found.shape == expected.shape, at
    if found.dtype.kind in "fc":
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=at)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=at)


def assert_same_in_both(
    computation, *args, rtol=RTOL, atol=ATOL, secure=False, **kwargs
):
    """Asserts that both runtimes give the same; returns what they give."""
    ours, theirs = contexts(secure)
    expected = call(theirs, computation, *args, **kwargs)
    found = call(ours, computation, *args, **kwargs)
    assert_same(found, expected, rtol, atol)
    return found


def assert_same_rounds(
    process, *rounds, rtol=RTOL, atol=ATOL, secure=False, seeded_by_time=False
):
    """Asserts that a process gives the same in both runtimes, round after round.

    Args:
      process: Any iterative process; each runtime's states stay in that runtime.
      *rounds: The arguments of `next` after the state, for each round.
      rtol: As for `assert_same`.
      atol: As for `assert_same`.
      secure: The process has secure sums; both runtimes compute them in the clear.
      seeded_by_time: Its initial state depends on the time; both use one of them.

    Returns:
      The outputs of the rounds.
    """
    ours, theirs = contexts(secure)
    expected = call(theirs, process.initialize)
    found = call(ours, process.initialize)
    if seeded_by_time:
        found = expected
    assert_same(found, expected, rtol, atol, "initial state")
    outputs = []
    for number, args in enumerate(rounds):
        expected = call(theirs, process.next, _state(expected), *args)
        found = call(ours, process.next, _state(found), *args)
        assert_same(found, expected, rtol, atol, f"round {number}")
        outputs.append(found)
    return outputs


def _state(output):
    return getattr(output, "state", output)


def contexts(secure=False):
    """This process's context and TFF's own; secure sums in the clear if asked for."""
    native = tff.framework.get_context_stack().current
    return in_process(insecure_aggregation=secure), _native_test_context(
        native
    ) if secure else native


@functools.cache
def _native_test_context(native):
    """TFF's context for tests of secure sums, on the worker of a native context.

    As `tff.backends.test.create_sync_test_cpp_execution_context` makes it.
    """

    def compile_in_the_clear(computation):
        return tff.backends.native.desugar_and_transform_to_native(
            tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
        )

    return tff.framework.SyncExecutionContext(
        executor_fn=native._factory,
        compiler_fn=compile_in_the_clear,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )
