"""AutoGraph converts what users write, in every algorithm, and nothing of this package."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.autograph.impl import conversion

import tff_algos
from tests.testing import float32_processes, problems
from tests.testing.float32_processes import BUILDERS, RELATIVES, SECOND_ORDER
from tests.testing.speed import some_fast
from tff_algos import autograph, client_works, optimizers
from tff_algos.client_works import local_training, personalization
from tff_algos.clients import attacks
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
PLAIN = problems.linear_model(np.float32)
FAST = ("fedavg", "fedsgd")


def _without_nan(x):
    if tf.reduce_any(tf.math.is_nan(x)):
        x = tf.zeros_like(x)
    return x


@tf.function
def _predict(weights, x, training):
    return PLAIN.predict_on_batch(weights, _without_nan(x), training)


def _loss(output, label, sample_weight=None):
    del sample_weight
    if tf.size(label) > 0:
        loss = tf.reduce_mean(tf.square(output - label)) / 2
    else:
        loss = tf.constant(0.0)
    return loss


def _update_metrics(state, labels, batch_output, sample_weight=None):
    if tf.size(labels) > 0:
        state = PLAIN.update_metrics_state(state, labels, batch_output, sample_weight)
    return state


def _finalize_metrics(state):
    total, count = state["loss"]
    if count > 0:
        total = total / count
    return collections.OrderedDict(loss=total)


def branching_model():
    """The linear model, with Python's `if` on tensors in each of its functions."""
    return tff.learning.models.FunctionalModel(
        initial_weights=PLAIN.initial_weights,
        predict_on_batch_fn=_predict,
        loss_fn=_loss,
        metrics_fns=(
            PLAIN.initialize_metrics_state,
            _update_metrics,
            _finalize_metrics,
        ),
        input_spec=PLAIN.input_spec,
    )


class BranchingVariableModel(FunctionalVariableModel):
    """The linear model with variables, with Python's `if` on tensors."""

    def __init__(self):
        super().__init__(PLAIN)

    def forward_pass(self, batch_input, training=True):
        x, y = batch_input
        return super().forward_pass((_without_nan(x), y), training)

    def report_local_unfinalized_metrics(self):
        reported = super().report_local_unfinalized_metrics()
        if reported["loss"][1] < 0:
            reported["loss"] = [tf.constant(0.0), tf.constant(0.0)]
        return reported


class BranchingSGD(tff.learning.optimizers.Optimizer):
    """SGD with Python's `if` on tensors."""

    def __init__(self):
        self._sgd = SGD(0.1)

    def initialize(self, specs):
        return self._sgd.initialize(specs)

    def next(self, state, weights, gradients):
        return self._sgd.next(
            state, weights, tuple(_without_nan(each) for each in gradients)
        )


def _assert_same_rounds(process, other, data):
    ours, output = problems.run(process, data, data)
    expected, expected_output = problems.run(other, data, data)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-7)
    loss, expected_loss = (
        each.metrics["client_work"]["train"]["loss"]
        for each in (output, expected_output)
    )
    assert loss == pytest.approx(expected_loss, rel=1e-6)


@pytest.mark.parametrize("name", some_fast(BUILDERS | SECOND_ORDER | RELATIVES, FAST))
def test_functional_models_may_branch_on_tensors(name):
    process = (BUILDERS | SECOND_ORDER | RELATIVES)[name](branching_model())
    data = float32_processes.cohort_for(name)
    _assert_same_rounds(process, float32_processes.built(name), data)


@pytest.mark.parametrize("name", some_fast(BUILDERS, FAST))
def test_variable_models_may_branch_on_tensors(name):
    process = BUILDERS[name](BranchingVariableModel)
    data = float32_processes.cohort_for(name)
    _assert_same_rounds(process, float32_processes.built(name), data)


class BranchingDense(tf.keras.layers.Dense):
    """Keras' layer, with Python's `if` on tensors."""

    def call(self, inputs):
        return super().call(_without_nan(inputs))


class BranchingLoss(tf.keras.losses.Loss):
    """Half of the mean squared error, with Python's `if` on tensors."""

    def call(self, y_true, y_pred):
        return _without_nan(tf.square(y_pred - y_true) / 2)


class BranchingMean(tf.keras.metrics.Mean):
    """The mean prediction, doubled if it is positive."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        if tf.size(y_true) > 0:
            super().update_state(y_pred)

    def result(self):
        mean = super().result()
        if mean > 0:
            mean = 2 * mean
        return mean


def test_keras_layers_losses_and_metrics_may_branch_on_tensors():
    def model():
        layer = BranchingDense(1, kernel_initializer="ones", use_bias=False)
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential([tf.keras.Input(2), layer]),
            loss=BranchingLoss(),
            input_spec=batches.element_spec,
            metrics=[lambda: BranchingMean("doubled")],
        )

    x = np.array([[1, 2], [np.nan, 3]], np.float32)
    batches = tf.data.Dataset.from_tensor_slices((x, x[:1, :1].repeat(2, 0))).batch(1)
    process = tff.learning.algorithms.build_weighted_fed_avg(model, SGD(0.1))
    output = process.next(process.initialize(), [batches])
    # Predictions 3 and 0, since the second example is replaced by zeros; targets 1.
    (kernel,) = output.state.global_model_weights.trainable
    np.testing.assert_allclose(kernel, [[0.8], [0.6]], rtol=1e-6)
    assert output.metrics["client_work"]["train"]["doubled"] == pytest.approx(3.0)


def test_optimizers_may_branch_on_tensors_at_clients_and_at_the_server():
    data = float32_processes.cohort()
    process, other = (
        tff_algos.build_fed_avg(PLAIN, optimizer, optimizer)
        for optimizer in (BranchingSGD(), SGD(0.1))
    )
    _assert_same_rounds(process, other, data)


def test_attacked_models_may_branch_on_tensors():
    data = [
        attacks.attacked_batches(batches, loss_scale=-2.0)
        for batches in float32_processes.cohort()
    ]
    process, other = (
        tff_algos.build_fed_avg(attacks.attacked_model(model), SGD(0.1))
        for model in (branching_model(), PLAIN)
    )
    _assert_same_rounds(process, other, data)


@pytest.mark.parametrize(
    "model",
    [branching_model(), BranchingVariableModel],
    ids=["functional", "variables"],
)
def test_personalized_models_may_branch_on_tensors(model):
    x, y = np.eye(4, 5, dtype=np.float32), np.ones(4, np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    clients = [collections.OrderedDict(train_data=data, test_data=data)]
    weights = tff.learning.models.ModelWeights(*PLAIN.initial_weights)
    found, expected = (
        personalization.build_personalization_eval(
            each, SGD(0.1), num_epochs=2, batch_size=2
        )(weights, clients)
        for each in (model, PLAIN)
    )
    curves, expected_curves = (
        each[personalization.PERSONALIZED]["loss"] for each in (found, expected)
    )
    np.testing.assert_allclose(curves, expected_curves, rtol=1e-6)
    assert curves.shape == (1, 3) and curves[0, 2] < curves[0, 0]


def test_schedules_may_branch_on_the_step():
    scheduled = tff.learning.optimizers.schedule_learning_rate(
        SGD(0.1), lambda step: 0.5 if step < 1 else 0.25
    )
    process = tff_algos.build_fed_avg(PLAIN, scheduled)
    client = problems.clients(sizes=(4,))[0]
    weights, _ = problems.run(process, [client.batches(None, 2, np.float32)])
    expected = problems.initial_vector(np.float32)
    for rate in (0.5, 0.25):
        expected = expected - rate * client.gradient(expected)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_client_works_of_users_may_branch_on_tensors():
    update = client_works.build_local_update(SGD(0.1))

    def client_update(model, round_num, server_weights, data):
        if round_num > 0:
            largest = tf.constant(0.5)
        else:
            largest = tf.constant(1.0)

        def shortened(gradient, weight):
            del weight
            if tf.norm(gradient) > largest:
                gradient = gradient * largest / tf.norm(gradient)
            return gradient

        trained = update(
            model,
            round_num,
            server_weights,
            data.batches,
            local_training.corrected_gradients(shortened),
        )
        weighting = tff.learning.ClientWeighting.UNIFORM
        return trained.report(model, server_weights, weighting), {}

    process = client_works.build_round_process(PLAIN, client_update)
    client = problems.clients(sizes=(4,))[0]
    weights = tff.learning.models.ModelWeights(*PLAIN.initial_weights)
    state = process.initialize()
    for largest in (1.0, 0.5):
        output = process.next(state, [weights], [client.batches(dtype=np.float32)])
        state = output.state
        gradient = client.gradient(problems.initial_vector(np.float32))
        parts = [gradient[:-1], gradient[-1:]]
        expected = [
            0.1 * part * min(1, largest / np.linalg.norm(part)) for part in parts
        ]
        (result,) = output.result
        np.testing.assert_allclose(result.update[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(result.update[1], expected[1][0], rtol=1e-5)


def test_what_was_told_not_to_be_converted_is_not():
    @tf.autograph.experimental.do_not_convert
    def traced(x):
        return autograph.convertible(_without_nan)(x)

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(traced)(tf.constant([1.0]))
    assert tf.function(autograph.convertible(_without_nan))(tf.constant(1.0)) == 1.0


@pytest.mark.parametrize(
    ("function", "converts"),
    [
        (local_training.train, False),
        (optimizers.in_weights_dtype, False),
        (tff.learning.optimizers.build_adam, False),
        (tff.learning.optimizers.schedule_learning_rate, True),
        (tff.learning.models.from_keras_model, False),
        (tff.learning.algorithms.build_weighted_fed_avg, True),
        (_without_nan, True),
    ],
)
def test_only_functions_that_may_need_it_are_converted(function, converts):
    assert conversion.is_allowlisted(function) is not converts
