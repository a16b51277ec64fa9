"""Rounds of clients that tell their number and may remember, as a runner drives them."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tff_algos.clients.client_memory import client_data_fields

# Clients' batches by their numbers, in the order in which they report.
Cohort = Mapping[int, tf.data.Dataset]


class Training:
    """A process between its rounds, with what its clients remember.

    Any process: the clients' data are what its type asks for.

    Attributes:
      process: The process.
      state: Its state.
      memory: The clients' memory; None if they have none.
    """

    def __init__(
        self, process: tff.learning.templates.LearningProcess, num_clients: int
    ) -> None:
        self.process = process
        self.state = process.initialize()
        self.memory = None
        self._fields = client_data_fields(process)
        if "memory" in self._fields:
            self.memory = tff_algos.ClientMemory.of_process(process, num_clients)

    def data(self, cohort: Cohort) -> list[Any]:
        """Returns what `process.next` takes for a cohort."""
        return [self._client_data(*item) for item in cohort.items()]

    def _client_data(self, number, batches):
        parts = {
            "examples": lambda: batches,
            "client_index": lambda: tff_algos.index_dataset(number),
            "memory": lambda: self.memory.dataset(number),
        }
        if not self._fields:
            return batches
        return collections.OrderedDict((name, parts[name]()) for name in self._fields)

    def round(self, cohort: Cohort) -> tff.learning.templates.LearningProcessOutput:
        """Runs a round and takes over its state and its clients' rows."""
        output = self.process.next(self.state, self.data(cohort))
        self.state = output.state
        if self.memory is not None:
            self.memory.update(output.metrics["client_work"]["memory"])
        return output

    def set_weights(self, *trainable: np.ndarray) -> None:
        """Sets the model's weights, of models that have no others."""
        weights = tff.learning.models.ModelWeights(trainable, ())
        self.state = self.process.set_model_weights(self.state, weights)

    @property
    def weights(self) -> np.ndarray:
        """The trainable weights as one float64 vector."""
        return problems.vector_of(self.process, self.state)

    def row(self, client: int) -> np.ndarray:
        """A client's row as one float64 vector."""
        return vector(self.memory.row(client))


def vector(tensors: Any) -> np.ndarray:
    """Returns a structure of tensors as one float64 vector."""
    flat = [np.ravel(np.asarray(t, np.float64)) for t in tf.nest.flatten(tensors)]
    return np.concatenate([np.zeros(0), *flat])


def run(
    process: tff.learning.templates.LearningProcess, num_clients: int, *cohorts: Cohort
) -> Training:
    """Returns a process after one round per cohort."""
    training = Training(process, num_clients)
    for cohort in cohorts:
        training.round(cohort)
    return training
