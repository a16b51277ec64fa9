"""Federated averaging on points of the plane, clients one by one or many at a time."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import tiny_task
from tff_algos import execution
from tff_algos.execution import compilation, plan

SGDM = tff.learning.optimizers.build_sgdm


def two_layers() -> tff.learning.models.FunctionalModel:
    """A network with one hidden layer on the tiny task's points."""
    base = tiny_task.model()
    rng = np.random.default_rng(1)

    @tf.function
    def predict(weights, x, training):
        del training
        kernel, bias, head = weights[0]
        return tf.nn.relu(x @ kernel + bias) @ head

    initial = (
        rng.normal(size=(2, 4)).astype(np.float32),
        np.zeros(4, np.float32),
        rng.normal(size=(4, 3)).astype(np.float32),
    )
    return tff.learning.models.FunctionalModel(
        initial_weights=(initial, ()),
        predict_on_batch_fn=predict,
        loss_fn=base.loss,
        metrics_fns=(
            base.initialize_metrics_state,
            base.update_metrics_state,
            base.finalize_metrics,
        ),
        input_spec=base.input_spec,
    )


@functools.cache
def process(model: str, optimizer: str) -> tff.learning.templates.LearningProcess:
    models = {"linear": tiny_task.model, "two layers": two_layers}
    optimizers = {
        "sgd": SGDM(0.1),
        "momentum": SGDM(0.1, momentum=0.9),
        "adam": tff.learning.optimizers.build_adam(0.05),
    }
    return tff.learning.algorithms.build_weighted_fed_avg(
        models[model](), client_optimizer_fn=optimizers[optimizer]
    )


@functools.cache
def context(batch_clients: bool) -> execution.InProcessContext:
    return execution.InProcessContext(batch_clients=batch_clients)


def points(size: int, seed: int) -> tf.data.Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, rng.integers(0, 3, size, np.int32)))


def rounds(learning, cohorts, batch_clients: bool):
    with tff.framework.get_context_stack().install(context(batch_clients)):
        state = learning.initialize()
        for cohort in cohorts:
            output = learning.next(state, cohort)
            state = output.state
    return output


def assert_close(one, other):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    tf.nest.map_structure(compare, one, other)


def client_pass_of(learning):
    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(learning.next).steps
        if isinstance(step, plan.ClientPass)
    ]
    return client_pass


def many_at_a_time_is_wrong(self, inputs, workers, limits):
    raise AssertionError("clients ran many at a time")
