"""A projection head between a model's features and its classifier.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021
(https://arxiv.org/abs/2103.16257): two dense layers map the encoder's features to those
that the contrastive loss compares and that the classifier takes. The authors' second
layer has 256 units; here it has as many as the features, so the classifier stays as it
is.
"""

import numpy as np
import tensorflow as tf

from tasks.models.blocks import RELU, dense
from tff_algos.clients.batching import derive_seed
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.block_model import EVALUATION, BlockModel, chain
from tff_algos.models.local_model import ModelOrFn, require_blocks


def with_projection_head(model: ModelOrFn, seed: int) -> BlockModel:
    """Returns the model with a head of two dense layers before its last layer.

    Args:
      model: A model whose features are vectors, `[n, d]`.
      seed: Seed of the head's initial weights.

    Raises:
      NoBlocksError: If the model is not a chain of blocks.
      HyperparameterError: If the features are not vectors.
    """
    model = require_blocks(model).with_classifier_apart()
    features = _features(model)
    size, dtype = features.shape[1], features.dtype.as_numpy_dtype
    # Another seed than the model's, which would draw the same numbers.
    rng = np.random.default_rng(derive_seed(seed, "projection head"))
    head = chain(dense(rng, size, size, dtype), RELU, dense(rng, size, size, dtype))
    return model.with_block(model.num_blocks - 1, head)


def _features(model: BlockModel) -> tf.TensorSpec:
    @tf.function
    def features(x):
        last = model.num_blocks - 1
        return model.apply_blocks(model.initial_weights, x, EVALUATION, 0, last).output

    # Keras models that TFF has converted work only in graphs.
    with tf.Graph().as_default():
        traced = features.get_concrete_function(model.input_spec[0])
    found = tf.TensorSpec.from_tensor(traced.outputs[0])
    if found.shape.rank != 2:
        raise HyperparameterError(
            "projection_head",
            True,
            f"False for a model with features of shape {found.shape}, which are not "
            "vectors",
        )
    return found
