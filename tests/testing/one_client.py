"""One client of linear regression: its data, the start, and rounds of a client work."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import problems
from tff_algos.models import local_model

MODEL = problems.linear_model()
(CLIENT,) = problems.clients(sizes=(5,))
START = problems.initial_vector()
RATE = problems.f32(0.1)


def weights_at(vector=START) -> local_model.Weights:
    """The linear model's weights, of a vector."""
    return local_model.Weights((tf.constant(vector[:-1]), tf.constant(vector[-1])), ())


def vector(tensors) -> np.ndarray:
    """The flat weights, or an update like them, as a vector."""
    return np.append(*(np.asarray(tensor, np.float64) for tensor in tensors))


def run(work: tff.learning.templates.ClientWorkProcess, *data):
    """The output of a client work's first round, for clients with these data."""
    server = tff.learning.models.ModelWeights(*MODEL.initial_weights)
    return work.next(work.initialize(), [server] * len(data), list(data))
