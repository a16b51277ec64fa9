"""What the in-process runtime holds, and how long."""

import contextlib
import gc
import weakref
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

from tests.testing import equivalence
from tff_algos import execution
from tff_algos.execution import compilation, in_process, tracing

_MANY = in_process._MAX_LATEST_PROGRAMS + 4


@pytest.fixture
def context():
    return execution.InProcessContext(num_threads=2)


@pytest.fixture
def compiled(monkeypatch):
    """Weak references to the plans that were made."""
    plans = []
    compile_to_plan = compilation.compile_to_plan

    def spy(*args):
        plan = compile_to_plan(*args)
        # A plan has slots; what it plans has none.
        plans.append(weakref.ref(plan.steps[0].fragment.nodes[0].leaf))
        return plan

    monkeypatch.setattr(compilation, "compile_to_plan", spy)
    return plans


@contextlib.contextmanager
def _without_garbage_collection():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _alive(references) -> int:
    return sum(reference() is not None for reference in references)


def _scale(factor):
    return tff.tensorflow.computation(lambda x: factor * x, np.float32)


def _sum_of_scaled(factor):
    scale = _scale(factor)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(x):
        return tff.federated_sum(tff.federated_map(scale, x))

    return total


def test_programs_go_with_their_computations(context, compiled):
    for factor in range(_MANY):
        computation = _sum_of_scaled(float(factor))
        assert equivalence.call(context, computation, [1.0, 2.0]) == 3 * factor
        del computation
    gc.collect()
    assert len(compiled) == _MANY
    assert _alive(compiled) == in_process._MAX_LATEST_PROGRAMS
    assert not context._programs._by_object


def test_what_tensorflow_knows_of_a_program_goes_with_it(context):
    def call(factor):
        assert equivalence.call(context, _sum_of_scaled(factor), [1.0]) == factor

    call(2.0)
    names = []
    with _without_garbage_collection():
        for factor in range(3, 2 * _MANY):
            call(float(factor))
            names.append(len(eager_context.context().list_function_names()))
    assert names[_MANY:] == [names[_MANY]] * len(names[_MANY:])


def test_leaves_and_graphs_do_not_wait_for_the_garbage_collector(context, compiled):
    computation = _sum_of_scaled(5.0)
    assert equivalence.call(context, computation, [2.0]) == 10.0
    traced = tracing.concrete_function(
        lambda x: [x + tf.ones([10])], [tf.TensorSpec([10])]
    )
    graph = weakref.ref(traced.graph)
    with _without_garbage_collection():
        del computation, traced
        context._programs._latest.clear()
        assert (_alive(compiled), graph()) == (0, None)


def test_a_computation_in_use_is_compiled_once_whatever_comes_and_goes(
    context, compiled
):
    kept = _sum_of_scaled(7.0)

    def work(factor):
        one = equivalence.call(context, _sum_of_scaled(factor), [1.0, 2.0])
        other = equivalence.call(context, kept, [1.0, factor])
        gc.collect()
        return one, other

    with futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(work, np.arange(_MANY, dtype=np.float32)))
    assert found == [(3.0 * n, 7.0 + 7 * n) for n in range(_MANY)]
    # One of the others is equal to it.
    assert len(compiled) == _MANY


def test_functional_arguments_in_use_are_compiled_once(context, compiled):
    unary = tff.FunctionType(np.float32, np.float32)

    @tff.federated_computation(unary, np.float32)
    def apply(function, x):
        return function(x)

    functions = [_scale(float(factor)) for factor in range(_MANY)]
    for _ in range(2):
        found = [equivalence.call(context, apply, f, 2.0) for f in functions]
        assert found == [2.0 * factor for factor in range(_MANY)]
    assert len(compiled) == _MANY
    del functions[1:], apply
    gc.collect()
    assert not context._programs._by_object


def test_data_sets_outlive_the_program_that_gave_them(context, compiled):
    def square(x):
        return x * x

    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def squares(data):
        return data.map(square)

    data = equivalence.call(context, squares, tf.data.Dataset.range(4))
    del squares
    context._programs._latest.clear()
    gc.collect()
    assert _alive(compiled) == 0
    for _ in range(2):
        assert list(data.as_numpy_iterator()) == [0, 1, 4, 9]
