"""Small problems with NumPy answers, for the tests of algorithms."""

import collections

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

NUM_FEATURES = 5


@tf.function
def _predict(weights, x, training):
    del training
    w, b = weights[0]
    return tf.linalg.matvec(x, w) + b


def _loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label)) / 2


@tf.function
def _initial_metrics():
    return collections.OrderedDict(loss=[tf.constant(0.0), tf.constant(0.0)])


@tf.function
def _update_metrics(state, labels, batch_output, sample_weight=None):
    del sample_weight
    total, count = state["loss"]
    size = tf.cast(tf.shape(labels)[0], tf.float32)
    loss = tf.cast(batch_output.loss, tf.float32)
    return collections.OrderedDict(loss=[total + loss * size, count + size])


@tf.function
def _finalize_metrics(state):
    total, count = state["loss"][0], state["loss"][1]
    return collections.OrderedDict(loss=tf.math.divide_no_nan(total, count))


# The metrics of a functional model that has none but its loss.
LOSS_METRICS = (_initial_metrics, _update_metrics, _finalize_metrics)


def linear_model(dtype=np.float64) -> tff.learning.models.FunctionalModel:
    """Linear regression on 5 features; the loss is half the mean squared error."""
    w = np.linspace(-0.5, 0.5, NUM_FEATURES).astype(dtype)
    return tff.learning.models.FunctionalModel(
        initial_weights=((w, np.asarray(0.25, dtype)), ()),
        predict_on_batch_fn=_predict,
        loss_fn=_loss,
        metrics_fns=LOSS_METRICS,
        input_spec=(
            tf.TensorSpec([None, NUM_FEATURES], dtype),
            tf.TensorSpec([None], dtype),
        ),
    )


def linear_loss_model() -> tff.learning.models.FunctionalModel:
    """The model with a loss linear in the weights: gradients are the same at all."""
    model = linear_model()

    def loss(output, label, sample_weight=None):
        del sample_weight
        return tf.reduce_mean(output * label)

    return tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=_predict,
        loss_fn=loss,
        metrics_fns=LOSS_METRICS,
        input_spec=model.input_spec,
    )


def initial_vector(dtype=np.float64) -> np.ndarray:
    """The linear model's initial weights as one vector: features, then bias."""
    trainable, _ = linear_model(dtype).initial_weights
    return np.append(*trainable).astype(np.float64)


@attrs.frozen(eq=False)
class Client:
    """Examples x [n, 5], y [n]."""

    x: np.ndarray
    y: np.ndarray

    def batches(self, batch_size=None, epochs=1, dtype=np.float64):
        """The client's batches in the order of its examples, epoch by epoch."""
        size = batch_size or max(1, len(self.y))
        slices = (self.x.astype(dtype), self.y.astype(dtype))
        dataset = tf.data.Dataset.from_tensor_slices(slices)
        return dataset.batch(size).repeat(epochs)

    def gradient(self, vector, rows=slice(None)):
        """Gradient of the mean loss of some rows at weights `vector` [6]."""
        features = np.column_stack([self.x, np.ones(len(self.y))])[rows]
        residual = features @ vector - self.y[rows]
        return features.T @ residual / len(residual)

    def local_sgd(
        self, vector, rate, batch_size=None, epochs=1, correction=lambda y: 0.0
    ):
        """Weights after SGD over the client's batches, and the examples processed."""
        size = batch_size or len(self.y)
        y = np.array(vector, np.float64)
        for _ in range(epochs):
            for start in range(0, len(self.y), size):
                gradient = self.gradient(y, slice(start, start + size))
                y = y - rate * (gradient + correction(y))
        return y, epochs * len(self.y)


def clients(sizes=(6, 6, 6, 6), seed=0) -> list[Client]:
    """Clients whose targets come from linear models of their own."""
    rng = np.random.default_rng(seed)
    made = []
    for size in sizes:
        x = rng.normal(size=(size, NUM_FEATURES))
        truth = rng.normal(size=NUM_FEATURES)
        made.append(Client(x, x @ truth + 0.1 * rng.normal(size=size)))
    return made


def vector_of(process, state) -> np.ndarray:
    """The process's trainable weights as one float64 vector."""
    trainable = process.get_model_weights(state).trainable
    return np.concatenate([np.ravel(np.asarray(t, np.float64)) for t in trainable])


def run(process, *cohorts):
    """Runs one round per cohort; returns the weights and the last output."""
    state = process.initialize()
    output = None
    for cohort in cohorts:
        output = process.next(state, cohort)
        state = output.state
    return vector_of(process, state), output


def mean(values, weights) -> np.ndarray:
    """The weighted mean of vectors."""
    return np.average(values, axis=0, weights=weights)


# TFF keeps hyperparameters as float32; an oracle in float64 must start from there.
def f32(value: float) -> float:
    """The float32 that TFF makes of a hyperparameter."""
    return float(np.float32(value))
