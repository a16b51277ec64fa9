"""What is read of graphs: names, dependencies, calls, shapes, random ops."""

import pytest
import tensorflow as tf

from tff_algos.execution import graph_contents

SPEC = tf.TensorSpec([None, 2], tf.float32)


@tf.function
def inner(x):
    return tf.sin(x)


@tf.function
def outer(x):
    return inner(x) + 1.0


def graph_of(function, *specs):
    return tf.function(function).get_concrete_function(*specs).graph.as_graph_def()


def name_like(names, text):
    (name,) = [name for name in names if text in name]
    return name


@pytest.mark.parametrize("name", ["a", "a:1", "^a", "a:output:0"])
def test_a_tensors_node_is_what_comes_before_the_colon(name):
    assert graph_contents.node_name(name) == "a"


def test_functions_are_listed_after_those_that_they_call():
    graph_def = graph_of(lambda x: outer(x), SPEC)
    names = graph_contents.callees_first(graph_def.library)
    assert names.index(name_like(names, "inner")) < names.index(
        name_like(names, "outer")
    )
    functions = graph_contents.functions_by_name(graph_def)
    assert set(functions) == set(names)
    reached = graph_contents.reached_ops(name_like(names, "outer"), functions)
    assert {"Sin", "AddV2"} <= reached
    assert "AddV2" not in graph_contents.reached_ops(
        name_like(names, "inner"), functions
    )


def test_all_nodes_are_the_graphs_and_its_functions():
    graph_def = graph_of(lambda x: tf.cos(outer(x)), SPEC)
    ops = [node.op for node in graph_contents.all_nodes(graph_def)]
    assert ops.count("Sin") == ops.count("Cos") == ops.count("AddV2") == 1


def test_ancestors_are_what_a_node_needs():
    def function(x, y):
        return tf.sin(tf.cos(x, name="cos"), name="sin") + tf.exp(y, name="exp")

    nodes = {node.name: node for node in graph_of(function, SPEC, SPEC).node}
    assert graph_contents.ancestors(nodes, ["sin"]) == {"sin", "cos", "x"}


def test_arguments_have_the_shapes_that_are_known():
    graph_def = graph_of(lambda x: outer(x), SPEC)
    functions = graph_contents.functions_by_name(graph_def)
    (spec,) = graph_contents.argument_specs(functions[name_like(functions, "outer")])
    assert (spec.shape.as_list(), spec.dtype) == ([None, 2], tf.float32)


@pytest.mark.parametrize("size, empty", [(0, True), (2, False), (None, False)])
def test_an_empty_placeholder_is_seen(size, empty):
    graph_def = graph_of(tf.sin, tf.TensorSpec([3, size], tf.float32))
    assert graph_contents.takes_empty_tensors(graph_def) == empty


@pytest.mark.parametrize(
    "draw, expected",
    [
        (lambda: tf.random.uniform([2], seed=7), True),
        (lambda: tf.random.uniform([2]), False),
        (lambda: tf.random.stateless_uniform([2], seed=[1, 2]), False),
        (tf.timestamp, True),
    ],
)
def test_seeds_and_clocks_make_executions_take_turns(draw, expected):
    tf.random.set_seed(None)
    assert graph_contents.takes_turns(graph_of(draw)) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: tf.map_fn(lambda y: 2 * y, x), True),
        (
            lambda x: tf.while_loop(
                lambda n, y: n < 3, lambda n, y: (n + 1, y * y), (0, x)
            ),
            False,
        ),
        (lambda x: 2 * x, False),
    ],
)
def test_loops_over_lists_within_functions_are_loops_over_time(function, expected):
    inner = tf.function(function)
    graph_def = (
        tf.function(lambda x: inner(x))
        .get_concrete_function(tf.TensorSpec([3], tf.float32))
        .graph.as_graph_def()
    )
    assert graph_contents.has_loops_over_time(graph_def) == expected


def test_a_loop_over_a_dataset_with_a_loop_inside_is_one_only_of_the_inner_loop():
    @tf.function
    def total(x):
        for y in tf.data.Dataset.from_tensor_slices(tf.stack([x, x])):
            x += y
        return x

    graph_def = total.get_concrete_function(tf.TensorSpec([3])).graph.as_graph_def()
    assert not graph_contents.has_loops_over_time(graph_def)
