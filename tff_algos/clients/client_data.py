"""The type of a client's data: its batches or a structure of named datasets.

A plain learning process takes each client's batches, `B*`. Some client works need more
fields, each a separate dataset:

    examples      B*      the batches of the round, one local step each
    client_index  int32*  one element: the client's index in [0, N)
    num_examples  int64*  one element: n_k, the client's number of examples
    full_pass     B*      batches that contain each of the n_k examples once
    memory        row*    one element: the client's row from earlier rounds

`num_examples` and `full_pass` are needed if the batches of a round repeat or omit
examples, as those of K local steps do.
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
    """One client's data after reading.

    Attributes:
      batches: The batches of the round.
      full_pass: Batches of a pass over its examples; `batches` if not given.
      client_index: The client's index, int32 []; -1 if its dataset is empty; None if
        not given.
      num_examples: n_k, int64 []; None if not given.
      row: The client's memory; None if it has none.
    """

    batches: tf.data.Dataset
    full_pass: tf.data.Dataset
    client_index: tf.Tensor | None = None
    num_examples: tf.Tensor | None = None
    row: Any = None


@attrs.frozen(kw_only=True)
class ClientDataFields:
    """The fields of a client's data beside its batches.

    Attributes:
      client_index: Whether the data include `client_index`.
      num_examples: Whether the data include `num_examples`.
      full_pass: Whether the data include `full_pass`.
      memory: A structure of `tf.TensorSpec`s of known shape, one client's row; None if
        the data do not include `memory`.
    """

    client_index: bool = False
    num_examples: bool = False
    full_pass: bool = False
    memory: Any = None

    def type(self, model: ModelOrFn) -> tff.Type:
        """Returns the type of one client's data; `B*` without additional fields."""
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
        """Reads data of the type `type`, inside a TensorFlow computation."""
        if not isinstance(data, collections.OrderedDict):
            return ClientData(batches=data, full_pass=data)
        return ClientData(
            batches=data["examples"],
            full_pass=data.get("full_pass", data["examples"]),
            # Not that of a client, so that it is refused where it is used.
            client_index=_only_element(data.get("client_index"), -1),
            num_examples=_only_element(data.get("num_examples")),
            row=_only_element(data.get("memory")),
        )


def _only_element(dataset: tf.data.Dataset | None, of_none: int = 0) -> Any:
    """Returns the only element of a dataset; of an empty one, the number everywhere."""
    if dataset is None:
        return None
    nothing = tf.nest.map_structure(
        lambda spec: tf.fill(spec.shape, tf.cast(of_none, spec.dtype)),
        dataset.element_spec,
    )
    return dataset.reduce(nothing, lambda _, element: element)
