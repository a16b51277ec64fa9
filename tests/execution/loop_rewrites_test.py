"""Loops compute the same after work was moved out of them."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.leaves import leaf_of
from tff_algos import cpus
from tff_algos.execution import (
    graph_contents,
    graph_rewrites,
    leaves,
    list_products,
    loop_rewrites,
    tracing,
    variables,
)

ROWS, MATRIX = (tf.TensorSpec(shape, tf.float64) for shape in ([5, 2, 3], [3, 3]))
RNG = np.random.default_rng(0)
X, W = RNG.normal(size=[5, 2, 3]), RNG.normal(size=[3, 3])


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """Half of the level-2 cache holds 256 x 256 numbers."""
    monkeypatch.setattr(cpus, "level_2_cache_bytes", lambda: 512 * 1024)


def rewritten(leaf: leaves.Leaf, *rewrites) -> leaves.Leaf:
    graph_def = tf.compat.v1.GraphDef.FromString(leaf.graph_def.SerializeToString())
    for rewrite in rewrites:
        rewrite(graph_def)
    graph_rewrites.prefix_functions(graph_def)
    return leaves.Leaf(leaf.name, graph_def, leaf.inputs, leaf.outputs)


def values_of(leaf, *arguments):
    specs = [tf.TensorSpec.from_tensor(tf.constant(each)) for each in arguments]
    run = tracing.trace(lambda *tensors: leaf(tensors), specs)
    return [output.numpy() for output in run(*map(tf.constant, arguments))]


def ops_in_loops(leaf: leaves.Leaf, op: str) -> list:
    functions = {each.signature.name: each for each in leaf.graph_def.library.function}
    bodies = {
        node.attr["body"].func.name
        for node in graph_contents.all_nodes(leaf.graph_def)
        if node.op in ("While", "StatelessWhile")
    }
    return [n for name in bodies for n in functions[name].node_def if n.op == op]


def transposed_products(leaf: leaves.Leaf) -> int:
    return sum(node.attr["transpose_b"].b for node in ops_in_loops(leaf, "MatMul"))


def assert_same(leaf, other, *arguments):
    for found, expected in zip(
        values_of(other, *arguments), values_of(leaf, *arguments), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_a_matrix_is_transposed_once_before_the_loop():
    @tf.function
    def products(x, w):
        state = tf.zeros_like(x[0])
        for index in tf.range(tf.shape(x)[0]):
            state = tf.matmul(tf.tanh(state), w, transpose_b=True) + x[index]
            state += tf.matmul(x[index], tf.transpose(w))
        return [state]

    leaf = leaf_of(products, ROWS, MATRIX)
    hoisted = rewritten(leaf, loop_rewrites.hoist_transposes)
    assert_same(leaf, hoisted, X, W)
    assert transposed_products(leaf) == 1
    assert len(ops_in_loops(leaf, "Transpose")) == 1
    assert transposed_products(hoisted) == 0
    assert not ops_in_loops(hoisted, "Transpose")


def test_both_factors_of_a_product_are_transposed_before_the_loop():
    @tf.function
    def products(x, w):
        first = x[0]
        state = tf.zeros_like(tf.matmul(first, w, transpose_a=True, transpose_b=True))
        for _ in tf.range(3):
            product = tf.matmul(first, w, transpose_a=True, transpose_b=True)
            state = tf.tanh(state) + product
        return [state]

    rows = RNG.normal(size=[1, 3, 2])
    leaf = leaf_of(products, tf.TensorSpec(rows.shape, tf.float64), MATRIX)
    hoisted = rewritten(leaf, loop_rewrites.hoist_transposes)
    assert transposed_products(leaf) == 1
    products = ops_in_loops(hoisted, "MatMul")
    assert not any(
        node.attr[flag].b
        for node in products
        for flag in ("transpose_a", "transpose_b")
    )
    assert_same(leaf, hoisted, rows, W)


def test_a_matrix_that_changes_is_transposed_in_the_loop():
    @tf.function
    def products(x, w):
        state = tf.zeros_like(x[0])
        for index in tf.range(tf.shape(x)[0]):
            state = tf.matmul(state, w, transpose_b=True) + x[index]
            w = 0.5 * w
        return [state, w]

    leaf = leaf_of(products, ROWS, MATRIX)
    hoisted = rewritten(leaf, loop_rewrites.hoist_transposes)
    assert_same(leaf, hoisted, X, W)
    assert transposed_products(hoisted) == transposed_products(leaf) == 1


def gradient_of_loop(state_of):
    """The gradients of a recurrence by its inputs and its matrix."""

    @tf.function
    def gradients(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            state = tf.ones_like(x[0])
            for index in tf.range(tf.shape(x)[0]):
                state = state_of(state, x[index], w)
            loss = tf.reduce_sum(state * state)
        return tape.gradient(loss, [x, w])

    return gradients


def test_a_gradient_multiplies_once_after_its_loop():
    gradients = gradient_of_loop(lambda state, x, w: tf.tanh(tf.matmul(state, w) + x))
    leaf = leaf_of(gradients, ROWS, MATRIX)
    both = rewritten(
        leaf, loop_rewrites.hoist_transposes, loop_rewrites.multiply_after_loops
    )
    assert_same(leaf, both, X, W)
    sums = [n for n in ops_in_loops(leaf, "AddN") if "MatMul" in "".join(n.input)]
    assert len(sums) == 1
    assert transposed_products(both) == 0
    assert len(ops_in_loops(both, "TensorListPushBack")) > len(
        ops_in_loops(leaf, "TensorListPushBack")
    )


def test_a_gradient_sums_a_bias_once_after_its_loop():
    @tf.function
    def gradients(x, w, bias):
        with tf.GradientTape() as tape:
            tape.watch([x, w, bias])
            state = tf.ones_like(x[0])
            for index in tf.range(tf.shape(x)[0]):
                state = tf.tanh(tf.nn.bias_add(tf.matmul(state, w) + x[index], bias))
            loss = tf.reduce_sum(state * state)
        return tape.gradient(loss, [x, w, bias])

    leaf = leaf_of(gradients, ROWS, MATRIX, tf.TensorSpec([3], tf.float64))
    both = rewritten(leaf, loop_rewrites.multiply_after_loops)
    assert_same(leaf, both, X, W, W[0])
    assert len(ops_in_loops(leaf, "BiasAddGrad")) == 1
    after = [
        node
        for node in graph_contents.all_nodes(both.graph_def)
        if node.op == "BiasAddGrad" and node not in ops_in_loops(leaf, node.op)
    ]
    assert len(after) == 1


def test_a_bias_may_be_that_of_images():
    @tf.function
    def gradients(x, w, bias):
        with tf.GradientTape() as tape:
            tape.watch([x, w, bias])
            state, total = tf.ones_like(x[0]), tf.constant(0.0, tf.float64)
            for index in tf.range(tf.shape(x)[0]):
                state = tf.tanh(tf.matmul(state, w) + x[index])
                images = tf.reshape(x[index], [1, 2, 1, 3])
                total += tf.reduce_sum(tf.nn.bias_add(images, bias) ** 2)
            loss = tf.reduce_sum(state * state) + total
        return tape.gradient(loss, [x, w, bias])

    leaf = leaf_of(gradients, ROWS, MATRIX, tf.TensorSpec([3], tf.float64))
    both = rewritten(leaf, loop_rewrites.multiply_after_loops)
    assert len(ops_in_loops(leaf, "BiasAddGrad")) == 1
    assert len(ops_in_loops(both, "Reshape")) > len(ops_in_loops(leaf, "Reshape"))
    assert_same(leaf, both, X, W, W[0])


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_loop_may_have_any_number_of_steps(steps):
    any_length = tf.TensorSpec([None, 2, 3], tf.float64)

    @tf.function
    def gradients(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            state = tf.ones([2, 3], tf.float64)
            for index in tf.range(tf.shape(x)[0]):
                state = tf.tanh(tf.matmul(state, w) + x[index])
            loss = tf.reduce_sum(state * state)
        return tape.gradient(loss, [x, w])

    leaf = leaf_of(gradients, any_length, MATRIX)
    both = rewritten(
        leaf, loop_rewrites.hoist_transposes, loop_rewrites.multiply_after_loops
    )
    assert_same(leaf, both, X[:steps], W)


def test_a_sum_that_the_loop_itself_uses_stays():
    gradients = gradient_of_loop(lambda state, x, w: tf.tanh(tf.matmul(state, w) + x))

    @tf.function
    def sums(x, w):
        total = tf.zeros_like(w)
        for index in tf.range(tf.shape(x)[0]):
            product = tf.matmul(x[index], x[index], transpose_a=True)
            total = total + product
            w = w + 0.1 * total
        return [*gradients(x, w), total]

    leaf = leaf_of(sums, ROWS, MATRIX)
    both = rewritten(leaf, loop_rewrites.multiply_after_loops)
    assert_same(leaf, both, X, W)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layer", ["SimpleRNN", "GRU", "LSTM"])
def test_recurrent_layers_of_keras_have_the_same_gradients(layer, dtype):
    def build():
        keras = getattr(tf.keras.layers, layer)(6, dtype=dtype)
        keras.build(tf.TensorShape([None, None, 3]))
        return keras

    shapes = [weight.shape for weight in build().get_weights()]

    @tff.tensorflow.computation((dtype, [2, 5, 3]), [(dtype, s) for s in shapes])
    def compute(x, weights):
        keras = build()

        @tf.function
        def gradients():
            for variable, value in zip(keras.weights, weights, strict=True):
                variable.assign(value)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(keras(x) ** 2)
            return tape.gradient(loss, [x, *keras.weights])

        return gradients()

    leaf = variables.lift(leaves.from_block(compute.to_building_block(), "leaf"))
    both = rewritten(
        leaf,
        loop_rewrites.hoist_transposes,
        loop_rewrites.multiply_after_loops,
        list_products.multiply_elements_before_loops,
        list_products.multiply_elements_after_loops,
    )
    print([n.name for n in ops_in_loops(both, "MatMul")])
    assert transposed_products(leaf) > 0
    assert transposed_products(both) == 0
    arguments = [RNG.normal(size=shape).astype(dtype) for shape in [(2, 5, 3), *shapes]]
    tolerance = 1e-5 if dtype == np.float32 else 1e-10
    for found, expected in zip(
        values_of(both, *arguments), values_of(leaf, *arguments), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@tf.function
def products_of_a_recurrence(x, w):
    state = tf.zeros_like(x[0])
    for index in tf.range(tf.shape(x)[0]):
        state = tf.tanh(tf.matmul(state, w) + x[index])
        state += tf.matmul(x[index], w, transpose_b=True)
    return [state]


@pytest.mark.parametrize(
    ("size", "blocks"),
    # A matrix that is small enough stays, and one whose columns have no divisor: 2 * 347.
    [(256, 1), (512, 4), (768, 12), (694, 1), (1024, 16)],
)
def test_a_large_matrix_is_divided_into_blocks_of_columns_before_the_loop(size, blocks):
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([3, 2, size], [size, size])]
    leaf = leaf_of(products_of_a_recurrence, *specs)
    divided = rewritten(
        leaf, loop_rewrites.hoist_transposes, loop_rewrites.divide_products
    )
    assert len(ops_in_loops(leaf, "MatMul")) == 2
    assert len(ops_in_loops(divided, "MatMul")) == 2 * blocks
    assert len(ops_in_loops(divided, "ConcatV2")) == (2 if blocks > 1 else 0)
    x, w = RNG.normal(size=[3, 2, size]), RNG.normal(size=[size, size]) / size
    assert_same(leaf, divided, x, w)


@pytest.mark.parametrize(("kilobytes", "blocks"), [(1024, 2), (2048, 1)])
def test_larger_caches_hold_larger_blocks(monkeypatch, kilobytes, blocks):
    monkeypatch.setattr(cpus, "level_2_cache_bytes", lambda: kilobytes * 1024)
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([3, 2, 512], [512, 512])]
    leaf = leaf_of(products_of_a_recurrence, *specs)
    divided = rewritten(
        leaf, loop_rewrites.hoist_transposes, loop_rewrites.divide_products
    )
    assert len(ops_in_loops(divided, "MatMul")) == 2 * blocks


def test_only_cpus_get_blocks():
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([3, 2, 512], [512, 512])]
    leaf = leaf_of(products_of_a_recurrence, *specs)
    assert len(ops_in_loops(leaf.with_loops, "MatMul")) == 2
    assert len(ops_in_loops(leaf.with_loops_on_cpu, "MatMul")) == 8


def test_a_large_matrix_that_changes_is_not_divided():
    @tf.function
    def products(x, w):
        state = tf.zeros_like(x[0])
        for index in tf.range(tf.shape(x)[0]):
            state = tf.matmul(state, w) + x[index]
            w = 0.5 * w
        return [state, w]

    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([3, 2, 512], [512, 512])]
    leaf = leaf_of(products, *specs)
    divided = rewritten(leaf, loop_rewrites.divide_products)
    assert len(ops_in_loops(divided, "MatMul")) == 1
    x, w = RNG.normal(size=[3, 2, 512]), RNG.normal(size=[512, 512]) / 512
    assert_same(leaf, divided, x, w)


def test_gradients_multiply_by_blocks_of_a_matrix_and_of_its_transposed():
    gradients = gradient_of_loop(lambda state, x, w: tf.tanh(tf.matmul(state, w) + x))
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([3, 2, 512], [512, 512])]
    leaf = leaf_of(gradients, *specs)
    divided = rewritten(
        leaf,
        loop_rewrites.hoist_transposes,
        loop_rewrites.multiply_after_loops,
        loop_rewrites.divide_products,
    )
    # Forward and backward, four blocks each; the sums' product is left without a use.
    products = [n.attr["transpose_a"].b for n in ops_in_loops(divided, "MatMul")]
    assert products.count(False) == 8
    x, w = RNG.normal(size=[3, 2, 512]), RNG.normal(size=[512, 512]) / 512
    assert_same(leaf, divided, x, w)
