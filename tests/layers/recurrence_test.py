"""Recurrent layers' own derivatives: against autodiff and finite differences."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.layers import gru, lstm, recurrence

TIME, BATCH, INPUTS, UNITS = 5, 3, 4, 2
LAYERS = {"lstm": (lstm.lstm, 4, 1), "gru": (gru.gru, 3, 2)}


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]


def _arguments(layer, seed=0):
    """Returns float64 x, kernel, recurrent kernel and bias."""
    _, gates, biases = layer
    width = gates * UNITS
    shapes = ((TIME, BATCH, INPUTS), (INPUTS, width), (UNITS, width))
    shapes += ((biases, width) if biases > 1 else (width,),)
    rng = np.random.default_rng(seed)
    return tuple(tf.constant(rng.normal(size=shape)) for shape in shapes)


def _loss(layer, arguments, gradient):
    outputs = layer[0](*arguments, gradient=gradient)
    return tf.reduce_sum(tf.sin(3.0 * outputs) * [1.0, 2.0])


def _gradients(layer, arguments, gradient="fused"):
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        loss = _loss(layer, arguments, gradient)
    return tape.gradient(loss, arguments)


def _hessian_product(layer, arguments, direction, gradient="fused"):
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        gradients = _gradients(layer, arguments, gradient)
    return tape.gradient(gradients, arguments, output_gradients=direction)


def _assert_close(got, expected, tolerance=1e-10):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        got,
        expected,
    )


def test_own_derivatives_equal_autodiffs_to_the_third(layer):
    arguments, direction = _arguments(layer), _arguments(layer, seed=1)

    def derivatives(gradient):
        with tf.GradientTape() as tape:
            tape.watch((arguments, direction))
            second = _hessian_product(layer, arguments, direction, gradient)
            along = tf.add_n([tf.reduce_sum(tf.sin(value)) for value in second])
        return (
            layer[0](*arguments, gradient=gradient),
            _gradients(layer, arguments, gradient),
            second,
            tape.gradient(along, (arguments, direction)),
        )

    _assert_close(derivatives("fused"), derivatives("autodiff"))


def test_own_derivatives_equal_finite_differences(layer):
    arguments, direction = _arguments(layer), _arguments(layer, seed=1)
    step = 1e-5

    def moved(sign):
        return tuple(a + sign * step * d for a, d in zip(arguments, direction))

    slope = (_loss(layer, moved(1), "fused") - _loss(layer, moved(-1), "fused")) / (
        2 * step
    )
    gradients = _gradients(layer, arguments)
    along = sum(tf.reduce_sum(g * d) for g, d in zip(gradients, direction))
    np.testing.assert_allclose(along, slope, rtol=1e-7)

    above, below = (_gradients(layer, moved(sign)) for sign in (1, -1))
    differences = tuple((a - b) / (2 * step) for a, b in zip(above, below))
    product = _hessian_product(layer, arguments, direction)
    assert all(np.abs(value).max() > 0.1 for value in product)
    _assert_close(product, differences, tolerance=1e-6)


def test_derivatives_cross_functions(layer):
    """As in a model whose predictions are a function, called in another."""
    arguments, direction = _arguments(layer), _arguments(layer, seed=1)
    inner = (tf.function(functools.partial(layer[0], gradient="fused")), *layer[1:])

    def loss(arguments):
        return tf.reduce_sum(tf.sin(3.0 * inner[0](*arguments)) * [1.0, 2.0])

    @tf.function
    def product():
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                total = loss(arguments)
            gradients = tape.gradient(total, arguments)
        return gradients, outer.gradient(gradients, arguments, direction)

    expected = (
        _gradients(layer, arguments, "autodiff"),
        _hessian_product(layer, arguments, direction, "autodiff"),
    )
    _assert_close(product(), expected)


def test_hessian_products_work_in_a_loop(layer):
    """The adjoint of three gradient steps at changing weights."""
    arguments, direction = _arguments(layer), _arguments(layer, seed=1)

    def adjoint(gradient):
        def body(step, adjoint):
            shift = 0.1 * tf.cast(step, tf.float64)
            at = tuple(argument + shift for argument in arguments)
            product = _hessian_product(layer, at, adjoint, gradient)
            return step + 1, tuple(a - 0.01 * p for a, p in zip(adjoint, product))

        return tf.while_loop(lambda step, _: step < 3, body, (0, direction))[1]

    in_graph = tf.function(lambda: adjoint("fused"))()
    _assert_close(in_graph, adjoint("autodiff"))
    assert np.abs(in_graph[2] - direction[2]).max() > 0.01


def test_derivatives_may_be_of_some_arguments(layer):
    arguments, direction = _arguments(layer), _arguments(layer, seed=1)

    def product(gradient):
        with tf.GradientTape() as outer:
            outer.watch(arguments[2])
            with tf.GradientTape() as tape:
                tape.watch(arguments[3])
                loss = _loss(layer, arguments, gradient)
            bias_gradient = tape.gradient(loss, arguments[3])
        return outer.gradient(bias_gradient, arguments[2], direction[3])

    _assert_close(product("fused"), product("autodiff"))


def test_first_derivatives_batch_over_clients(layer):
    clients = [_arguments(layer, seed) for seed in range(3)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        functools.partial(_gradients, layer), stacked, fallback_to_while_loop=False
    )
    for index, one in enumerate(clients):
        got = tf.nest.map_structure(lambda value, index=index: value[index], batched)
        _assert_close(got, _gradients(layer, one, "autodiff"))


def test_second_derivatives_batch_over_clients(layer):
    clients = [(_arguments(layer, s), _arguments(layer, s + 3)) for s in range(3)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        lambda client: _hessian_product(layer, *client),
        stacked,
        fallback_to_while_loop=False,
    )
    for index, one in enumerate(clients):
        got = tf.nest.map_structure(lambda value, index=index: value[index], batched)
        _assert_close(got, _hessian_product(layer, *one, "autodiff"))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_goes_over_time_either_way(reverse):
    x = tf.reshape(tf.range(12.0), [4, 3, 1])

    def add(state, inputs):
        total = state[0] + inputs[0]
        return (total,), (total, -inputs[0])

    sums, negated = recurrence.scan(
        add, (tf.zeros([3, 1]),), (x,), [1, 1], reverse=reverse
    )
    np.testing.assert_array_equal(sums, tf.cumsum(x, reverse=reverse))
    np.testing.assert_array_equal(negated, -x)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("count", "usual"),
    [(1, 4), (4, 4), (5, 8), (12, 12), (13, 16), (17, 24), (97, 128)],
)
def test_a_layer_computes_usual_numbers_of_rows(count, usual, known):
    found = []

    def layer(x):
        found.append(x)
        return x + 1.0

    x = tf.reshape(tf.range(2.0 * count), [2, count, 1])
    spec = tf.TensorSpec([2, count if known else None, 1])
    run = tf.function(lambda x: (recurrence.with_usual_sizes(layer, x), found[-1]))
    outputs, computed = run.get_concrete_function(spec)(x)
    np.testing.assert_array_equal(outputs, x + 1.0)
    assert computed.shape == (2, usual, 1)
    assert not np.any(computed[:, count:])


@pytest.mark.parametrize(
    ("num_steps", "usual"), [(1, 4), (4, 4), (9, 10), (80, 80), (81, 96)]
)
def test_a_layer_computes_usual_numbers_of_steps_if_they_are_not_known(
    num_steps, usual
):
    found = []

    def layer(x):
        found.append(x)
        return tf.cumsum(x)

    x = tf.reshape(tf.range(3.0 * num_steps), [num_steps, 3, 1])
    for known, computed_steps in ((None, usual), (num_steps, num_steps)):
        run = tf.function(lambda x: (recurrence.with_usual_sizes(layer, x), found[-1]))
        spec = tf.TensorSpec([known, 3, 1])
        outputs, computed = run.get_concrete_function(spec)(x)
        np.testing.assert_array_equal(outputs, tf.cumsum(x))
        assert computed.shape == (computed_steps, 4, 1)
        assert not np.any(computed[num_steps:])


def test_derivatives_do_not_depend_on_whether_the_number_of_steps_is_known(layer):
    def of_nine_steps(x, *weights):
        return tf.concat([x, x[:4]], axis=0), *weights

    arguments = of_nine_steps(*_arguments(layer))
    direction = of_nine_steps(*_arguments(layer, seed=1))

    @tf.function
    def derivatives(*arguments):
        second = _hessian_product(layer, arguments, direction)
        return _gradients(layer, arguments), second

    known = [tf.TensorSpec.from_tensor(each) for each in arguments]
    unknown = [tf.TensorSpec([None, *known[0].shape[1:]], tf.float64), *known[1:]]
    found, expected = (
        derivatives.get_concrete_function(*specs)(*arguments)
        for specs in (unknown, known)
    )
    _assert_close(found, expected)


def test_unknown_gradient_is_refused(layer):
    with pytest.raises(ValueError, match="'fused', 'autodiff'.*found 'magic'"):
        _loss(layer, _arguments(layer), "magic")


@pytest.mark.parametrize("width", [3, 512])
def test_products_equal_plain_ones(width):
    """Also where columns are added for speed, and batched over clients."""
    rng = np.random.default_rng(0)
    x, kernel, y, back = (
        tf.constant(rng.normal(size=shape))
        for shape in ((2, 4, 3, 5), (2, 5, width), (2, 4, 3, width), (2, width, 5))
    )

    def products(values):
        x, kernel, y, back = values
        return (
            recurrence.product(x, kernel),
            recurrence.product(x, back, transpose=True),
            recurrence.outer_products(x, y),
            recurrence.multiplier(kernel)(x[0]),
            recurrence.multiplier(back, transpose=True)(x[0]),
        )

    got = tf.vectorized_map(
        products, (x, kernel, y, back), fallback_to_while_loop=False
    )
    expected = (
        np.einsum("ctni,cio->ctno", x, kernel),
        np.einsum("ctni,coi->ctno", x, back),
        np.einsum("ctni,ctno->cio", x, y),
        np.einsum("cni,cio->cno", x[:, 0], kernel),
        np.einsum("cni,coi->cno", x[:, 0], back),
    )
    _assert_close(got, expected)
