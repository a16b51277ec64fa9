"""What a client's data hold: its batches alone, or several data sets by name.

A plain learning process takes each client's batches, `B*`. Some client works need more,
each as a data set of its own beside the batches:

    examples      B*      the batches of the round, one local step each
    client_index  int32*  one number: which client it is, in [0, N)
    num_examples  int64*  one number: n_k, the examples that the client has
    full_pass     B*      batches in which each of its n_k examples comes once
    memory        row*    one row: what it remembers of earlier rounds

`num_examples` and `full_pass` say what the batches of a round cannot where they repeat
examples or leave some out, as those of K local steps do.
"""

import collections
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True)
class ClientData:
    """One client's data, read.

    Attributes:
      batches: The batches of the round.
      full_pass: Batches of a pass over its examples; `batches` where there are no others.
      client_index: Which client it is, int32 []; None if the data do not say.
      num_examples: n_k, int64 []; None if the data do not say.
      row: What it remembers; None if it remembers nothing.
    """

    batches: tf.data.Dataset
    full_pass: tf.data.Dataset
    client_index: tf.Tensor | None = None
    num_examples: tf.Tensor | None = None
    row: Any = None


@attrs.frozen(kw_only=True)
class ClientDataFields:
    """Which data sets stand beside a client's batches.

    Attributes:
      client_index: Whether `client_index` does.
      num_examples: Whether `num_examples` does.
      full_pass: Whether `full_pass` does.
      memory: A structure of `tf.TensorSpec`s of known shape, one client's row, if
        `memory` does.
    """

    client_index: bool = False
    num_examples: bool = False
    full_pass: bool = False
    memory: Any = None

    def type(self, model: ModelOrFn) -> tff.Type:
        """Returns the type of one client's data: `B*` if nothing stands beside it."""
        batches = local_model.data_type(model)
        fields = {
            "client_index": tff.SequenceType(np.int32) if self.client_index else None,
            "num_examples": tff.SequenceType(np.int64) if self.num_examples else None,
            "full_pass": batches if self.full_pass else None,
            "memory": self._memory_type(),
        }
        beside = [item for item in fields.items() if item[1] is not None]
        if not beside:
            return batches
        return tff.StructWithPythonType(
            [("examples", batches), *beside], collections.OrderedDict
        )

    def _memory_type(self) -> tff.Type | None:
        if self.memory is None:
            return None
        return tff.SequenceType(tff.types.tensorflow_to_type(self.memory))

    def read(self, data: Any) -> ClientData:
        """Reads data of the type `type`; inside a TensorFlow computation."""
        if not isinstance(data, collections.OrderedDict):
            return ClientData(batches=data, full_pass=data)
        return ClientData(
            batches=data["examples"],
            full_pass=data.get("full_pass", data["examples"]),
            client_index=_only_element(data.get("client_index")),
            num_examples=_only_element(data.get("num_examples")),
            row=_only_element(data.get("memory")),
        )


def _only_element(dataset: tf.data.Dataset | None) -> Any:
    """Returns the element of a data set of one; zeros if it has none."""
    if dataset is None:
        return None
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), dataset.element_spec
    )
    return dataset.reduce(zeros, lambda _, element: element)
