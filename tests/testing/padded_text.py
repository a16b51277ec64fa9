"""A client with two texts that end early, and what follows their end."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tasks.models import text
from tff_algos import execution

_LENGTH = 6
_Y = np.array([[1, 2, 0, 0, 0, 0], [3, 1, 2, 0, 0, 0]], np.int32)


def updates(build_client_work, **settings):
    """The updates of a client whose texts are followed by one word, and by another."""
    model = text.build_lstm_model(vocab_size=5, sequence_length=_LENGTH)
    sgd = tff.learning.optimizers.build_sgdm(0.5)
    work = build_client_work(model, sgd, **settings)
    server = tff.learning.models.ModelWeights(*model.initial_weights)
    found = []
    for following in (0, 4):
        x = np.where(_Y == 0, following, np.roll(_Y, 1, axis=1)).astype(np.int32)
        data = tf.data.Dataset.from_tensor_slices((x, _Y)).batch(2).repeat(2)
        output = work.next(work.initialize(), [server], [_data(work, data)])
        found.append([np.asarray(w) for w in output.result[0].update])
    return found


def _data(work, batches):
    member = work.next.type_signature.parameter[2].member
    if isinstance(member, tff.SequenceType):
        return batches
    rng = np.random.default_rng(0)

    def number(spec):
        if spec.dtype == tf.bool:
            return np.True_
        return 0.1 * rng.normal(size=spec.shape).astype(spec.dtype.as_numpy_dtype)

    row = tf.nest.map_structure(
        number, tff.types.type_to_tf_tensor_specs(member.memory.element)
    )
    return collections.OrderedDict(
        examples=batches,
        client_index=tff_algos.index_dataset(0),
        memory=execution.ElementDataset(row),
    )


def assert_same_but_trained(first, second):
    """Asserts that two updates are equal, and that of the embedding is not zero."""
    embedding, *_ = first
    assert np.any(embedding)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
