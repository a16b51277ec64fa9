"""Learning processes whose clients keep models of their own between rounds."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import PartFactory
from tff_algos.algorithms.arguments import (
    Distributor,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works import remembered_weights
from tff_algos.client_works.partly_personal_training import others
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import BlockModel, WeightMask, local_model
from tff_algos.models.local_model import ModelOrFn, Weights
from tff_algos.optimizers import of_some_weights


class PersonalProcess(tff.learning.templates.LearningProcess):
    """A learning process that also says which model a client predicts with.

        weights = process.get_model_weights(state)
        own = process.get_personal_weights(weights, memory.row(client))

    Like every process whose clients remember, it takes a client's row as the `memory` of
    its data, and `tff_algos.ClientMemory` keeps the rows.

    Attributes:
      shares_weights: Whether clients share any weight; otherwise the server's model stays
        as it was.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        model: ModelOrFn,
        personal_weights: Callable[[Weights, Any], Weights],
        *,
        shares_weights: bool = True,
    ):
        """Initializes the process.

        Args:
          process: A process whose clients' data have a `memory`.
          model: The model that it trains.
          personal_weights: From the server's weights and a client's row to the weights
            that the client predicts with.
          shares_weights: Whether clients share any weight.
        """
        self.shares_weights = shares_weights
        super().__init__(
            process.initialize,
            process.next,
            get_model_weights=process.get_model_weights,
            set_model_weights=process.set_model_weights,
            get_hparams_fn=process.get_hparams,
            set_hparams_fn=process.set_hparams,
        )
        data_type = process.next.type_signature.parameter[1].member
        weights_type = local_model.weights_type(model)

        @tff.tensorflow.computation(weights_type, data_type.memory.element)
        @tf.function
        def compute(server_weights, row):
            own = personal_weights(local_model.flatten(server_weights), row)
            return tff.learning.models.ModelWeights(
                tf.nest.pack_sequence_as(server_weights.trainable, own.trainable),
                tf.nest.pack_sequence_as(
                    server_weights.non_trainable, own.non_trainable
                ),
            )

        self._personal_weights = compute

    def get_personal_weights(
        self, model_weights: tff.learning.models.ModelWeights, row: Any
    ) -> tff.learning.models.ModelWeights:
        """Returns the weights that a client predicts with.

        Args:
          model_weights: The server's, as `get_model_weights` returns them.
          row: The client's row, as `tff_algos.ClientMemory.row` returns it. A client
            that has not taken part has a row of zeros, and the server's model.
        """
        return self._personal_weights(model_weights, row)


def compose_partly_personal(
    model: ModelOrFn,
    client_work: tff.learning.templates.ClientWorkProcess,
    personal: WeightMask,
    server_optimizer: Optimizer | None = None,
    *,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
) -> PersonalProcess:
    """Composes a process whose clients keep a part of the model to themselves.

    Args:
      model: As in `compose`, and so is every argument not listed here.
      client_work: Of `client_works.build_partly_personal_client_work`.
      personal: The clients' part of the weights.
    """
    shared = others(personal.trainable)
    if server_optimizer is not None:
        server_optimizer = of_some_weights(server_optimizer, shared)
    process = compose(
        model,
        client_work,
        server_optimizer,
        model_distributor=model_distributor,
        model_aggregator=PartFactory(shared, model_aggregator),
    )
    return PersonalProcess(
        process,
        model,
        lambda server, row: remembered_weights.read(row, server, personal),
        shares_weights=any(shared),
    )


def last_blocks(model: BlockModel, count: int) -> WeightMask:
    """Returns the weights of the last `count` blocks.

    Raises:
      HyperparameterError: If the model has fewer blocks.
      TypeError: If it is not a block model.
    """
    total = _num_blocks(model, count)
    return model.mask_of_blocks(total - count, total)


def first_blocks(model: BlockModel, count: int) -> WeightMask:
    """Returns the weights of the first `count` blocks.

    Raises:
      HyperparameterError: If the model has fewer blocks.
      TypeError: If it is not a block model.
    """
    _num_blocks(model, count)
    return model.mask_of_blocks(0, count)


def _num_blocks(model: BlockModel, count: int) -> int:
    total = local_model.require_blocks(model).num_blocks
    if count > total:
        raise HyperparameterError(
            "personal_blocks", count, f"at most {total}, the model's number of blocks"
        )
    return total
