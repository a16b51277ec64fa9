"""Clients that lie: golden numbers of model, batches and reports."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import learning

from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tff_algos import client_works, clients
from tff_algos.clients import attacks
from tff_algos.models import local_model

SGD = learning.optimizers.build_sgdm
CLIENT = problems.clients(sizes=(5,))[0]
START = problems.initial_vector()
MODEL = problems.linear_model()
ATTACKED = clients.attacked_model(MODEL)
SPEC = tf.TensorSpec([None], np.float64)


def _mean_output(output, label, sample_weight=None):
    del label, sample_weight
    return tf.reduce_mean(output)


def doubling_model(input_spec, loss=_mean_output):
    """A model whose output is its input, twice."""
    return learning.models.FunctionalModel(
        initial_weights=((np.float64(2.0),), ()),
        predict_on_batch_fn=tf.function(lambda weights, x, training: weights[0][0] * x),
        loss_fn=loss,
        input_spec=input_spec,
    )


def loss_at_start(rows=slice(None)):
    residual = CLIENT.x[rows] @ START[:-1] + START[-1] - CLIENT.y[rows]
    return np.mean(residual**2) / 2


def view_on(batch):
    """Loss, gradient and metrics of the attacked model at its initial weights."""
    view = local_model.create(ATTACKED)
    trainable = tuple(tf.constant(w) for w in MODEL.initial_weights[0])
    weights = local_model.Weights(trainable, ())
    trained = view.loss_gradients(weights, view.initial_metrics(), batch)
    evaluated = view.evaluate(weights, view.initial_metrics(), batch)
    return trained, evaluated


def attacked_batch(**attack):
    (batch,) = clients.attacked_batches(CLIENT.batches(), **attack)
    return batch


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0, -2.0])
def test_a_scale_multiplies_loss_and_gradients(scale):
    trained, evaluated = view_on(attacked_batch(loss_scale=scale, loss_bias=7.0))
    for result in (trained, evaluated):
        assert float(result.loss) == pytest.approx(scale * loss_at_start(), rel=1e-12)
        assert result.num_examples == 5
    np.testing.assert_allclose(
        np.append(*trained.gradients), scale * CLIENT.gradient(START), rtol=1e-12
    )


def test_a_model_takes_its_own_batches_as_well():
    (plain,) = CLIENT.batches()
    trained, evaluated = view_on(plain)
    assert float(trained.loss) == pytest.approx(loss_at_start(), rel=1e-12)
    assert evaluated.loss == trained.loss
    np.testing.assert_allclose(np.append(*trained.gradients), CLIENT.gradient(START))
    for value, expected in zip(
        trained.metrics, view_on(attacked_batch())[0].metrics, strict=True
    ):
        np.testing.assert_array_equal(value, expected)


def test_weights_and_inputs_are_those_of_the_model():
    assert ATTACKED.initial_weights == MODEL.initial_weights
    x_spec, label_spec = ATTACKED.input_spec
    assert x_spec == MODEL.input_spec[0]
    assert label_spec["label"] == MODEL.input_spec[1]
    element = clients.attacked_batches(CLIENT.batches(), 2, 1, 3).element_spec
    assert local_model.data_type(ATTACKED).element.is_equivalent_to(
        tff.types.tensorflow_to_type(element)
    )


def test_batches_tell_the_attack_example_by_example():
    batches = clients.attacked_batches(CLIENT.batches(2), 3.0, -0.5, 2.0)
    whole = list(CLIENT.batches(2))
    for (x, label), (honest_x, honest_y) in zip(batches, whole, strict=True):
        np.testing.assert_array_equal(x, honest_x)
        np.testing.assert_array_equal(label["label"], honest_y)
        np.testing.assert_array_equal(label["loss_scale"], [3.0] * len(honest_y))
        np.testing.assert_array_equal(label["loss_bias"], [-0.5] * len(honest_y))
        np.testing.assert_array_equal(label["update_scale"], [2.0] * len(honest_y))


def test_a_label_with_parts_of_its_own_is_none_of_an_attack():
    names = ("first", "second", "third")
    model = doubling_model(
        (SPEC, collections.OrderedDict.fromkeys(names, SPEC)),
        lambda output, label, sample_weight=None: tf.reduce_mean(
            output * label["second"]
        ),
    )
    under_attack = clients.attacked_model(model)
    x = tf.constant([1.0, 2.0], tf.float64)
    label = collections.OrderedDict(first=x, second=3 * x, third=x)
    output = model.predict_on_batch(model.initial_weights, x, training=True)
    assert float(under_attack.loss(output, label)) == pytest.approx(15.0)
    dataset = tf.data.Dataset.from_tensors((x, label))
    ((_, lying),) = clients.attacked_batches(dataset, loss_scale=2.0)
    assert float(under_attack.loss(output, lying)) == pytest.approx(30.0)
    assert attacks.reported_loss(tf.constant(1.0), dataset) == 1.0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_a_bias_is_added_once_to_what_is_reported(dtype):
    loss = tf.constant(1.25, dtype)
    lying = clients.attacked_batches(CLIENT.batches(2, 3), loss_bias=1000.0)
    reported = attacks.reported_loss(loss, lying)
    assert reported == 1001.25 and reported.dtype == dtype
    assert attacks.reported_loss(loss, CLIENT.batches(2, 3)) == 1.25
    honest = clients.attacked_batches(CLIENT.batches(2, 3), loss_scale=5.0)
    assert attacks.reported_loss(loss, honest) == 1.25
    # Without examples there is nothing to report.
    empty = lying.take(0)
    assert attacks.reported_loss(tf.constant(0.0, dtype), empty) == 0.0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_an_update_is_scaled_once(dtype):
    update = tf.constant([1.5, -2.0], dtype), tf.constant(4.0, dtype)
    lying = clients.attacked_batches(CLIENT.batches(2, 3), update_scale=-3.0)
    vector, scalar = attacks.sent_update(update, lying)
    np.testing.assert_array_equal(vector, [-4.5, 6.0])
    assert scalar == -12.0 and vector.dtype == scalar.dtype == dtype
    honest = clients.attacked_batches(CLIENT.batches(2, 3), loss_scale=5.0)
    for dataset in (honest, CLIENT.batches(2, 3), lying.take(0)):
        vector, scalar = attacks.sent_update(update, dataset)
        np.testing.assert_array_equal(vector, [1.5, -2.0])
        assert scalar == 4.0


def one_round(work, data):
    """What clients of the attacked model report, and what is measured."""
    weights = learning.models.ModelWeights(*MODEL.initial_weights)

    @tff.federated_computation(
        tff.FederatedType(work.next.type_signature.parameter[1].member, tff.SERVER),
        work.next.type_signature.parameter[2],
    )
    def run(weights, data):
        return work.next(work.initialize(), tff.federated_broadcast(weights), data)

    return run(weights, data)


def four_clients():
    """The same client: honest, with a bias, with a scale, with a scaled update."""
    return [
        clients.attacked_batches(CLIENT.batches(), **attack)
        for attack in (
            {},
            {"loss_bias": 50.0},
            {"loss_scale": 3.0},
            {"update_scale": -2.0},
        )
    ]


def assert_updates(results):
    """A bias leaves an update alone, both scales multiply that of a single step."""
    delta = problems.f32(0.1) * CLIENT.gradient(START)
    for result, factor in zip(results, (1, 1, 3, -2), strict=True):
        np.testing.assert_allclose(np.append(*result.update), factor * delta, rtol=1e-9)


def test_q_fedavgs_clients_weigh_by_what_they_report():
    work = client_works.build_loss_weighted_training_client_work(
        ATTACKED, SGD(0.1), loss_floor=1e-10
    )
    output = one_round(work, four_clients())
    loss = loss_at_start()
    assert_updates(output.result)
    np.testing.assert_allclose(
        [result.update_weight for result in output.result],
        [loss, loss + 50, 3 * loss, loss],
        rtol=1e-6,
    )
    assert output.measurements["max_loss"] == pytest.approx(loss + 50, rel=1e-6)


def test_afls_mixture_follows_what_clients_report():
    work = client_works.build_agnostic_training_client_work(
        ATTACKED, SGD(0.1), num_clients=4, mixture_learning_rate=0.001
    )
    output = one_round(work, numbered(four_clients()))
    loss = loss_at_start()
    assert_updates(output.result)
    losses = np.array([loss, loss + 50, 3 * loss, loss])
    # By so small a rate nobody's weight reaches zero: the projection is a shift.
    expected = 1 / 4 + 0.001 * (losses - losses.mean())
    assert expected.min() > 0
    np.testing.assert_allclose(output.state.mixture, expected, rtol=1e-9)
    assert output.measurements["max_loss"] == pytest.approx(loss + 50, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: None, "FunctionalModel, found <class 'function'>"),
        (
            doubling_model(collections.OrderedDict(x=SPEC, y=SPEC)),
            r"pairs \(x, y\), found input_spec OrderedDict",
        ),
    ],
)
def test_models_that_cannot_be_attacked_are_named(model, message):
    with pytest.raises(TypeError, match=message):
        clients.attacked_model(model)


def test_client_works_are_known_by_the_attacks_that_they_apply():
    update = (tf.constant([1.5, -2.0]),)
    lying = clients.attacked_batches(CLIENT.batches(2, 3), update_scale=-3.0)
    with attacks.applied_by_client_works() as applied:
        attacks.sent_update(update, CLIENT.batches(2, 3))
        assert applied == set()
        attacks.sent_update(update, lying)
        assert applied == {"update_scale"}
    attacks.reported_loss(tf.constant(1.0), lying)
    assert applied == {"update_scale"}
