"""Models of blocks, with blocks whose numbers can be followed by hand."""

import collections

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.models.block_model import EVALUATION, Block, BlockModel, chain, layer


def _array(*values):
    return np.array(values, np.float32)


def _add(x, weight):
    return x + weight


def _scaled():
    """Returns a block that counts its batches and is scaled by a seed in training."""

    def apply(trainable, non_trainable, x, mode):
        (factor,), (count,) = trainable, non_trainable
        if mode.dropout_seed is not None:
            x *= 0.5 * tf.cast(mode.dropout_seed, tf.float32)
        return x * factor, (count + 1.0 if mode.batch_statistics else count,)

    return Block(
        apply=apply,
        trainable=(_array(2.0),),
        non_trainable=(_array(0.0),),
        has_dropout=True,
    )


def _seed(trainable, x):
    """Depends on the last weight and on the batch."""
    return tf.cast(tf.reduce_sum(trainable[-1]) + tf.reduce_sum(x), tf.uint32)


def _loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))


def _no_metrics():
    def initialize():
        return collections.OrderedDict(count=tf.constant(0.0))

    def update(state, labels, batch_output, sample_weight=None):
        del labels, batch_output, sample_weight
        return collections.OrderedDict(count=state["count"] + 1.0)

    return initialize, update, lambda state: state


SPEC = (tf.TensorSpec([None, 1], tf.float32), tf.TensorSpec([None, 1], tf.float32))

BLOCKS = (
    layer(_add, _array(1.0)),
    chain(_scaled(), layer(_add, _array(10.0)), layer(tf.negative)),
    chain(layer(_add, _array(5.0)), _scaled()),
)


def _model(blocks=BLOCKS, **arguments):
    arguments = {
        "loss_fn": _loss,
        "metrics_fns": _no_metrics(),
        "input_spec": SPEC,
        "dropout_seed_fn": _seed,
    } | arguments
    return BlockModel(blocks, **arguments)


X = tf.constant([[1.0], [3.0]])


def test_initial_weights_are_those_of_the_blocks_in_order():
    trainable, non_trainable = _model().initial_weights
    assert np.ravel(trainable).tolist() == [1.0, 2.0, 10.0, 5.0, 2.0]
    assert np.ravel(non_trainable).tolist() == [0.0, 0.0]
    assert _model().num_blocks == 3


def test_evaluation_gives_numbers_computed_by_hand():
    model = _model()
    found = model.apply_blocks(model.initial_weights, X, EVALUATION)
    #      x + 1         -(2 h + 10)       2 (h + 5)
    hidden = [[2.0], [4.0]], [[-14.0], [-18.0]], [[-18.0], [-26.0]]
    np.testing.assert_array_equal(found.inputs[0], X)
    np.testing.assert_array_equal(found.inputs[1], hidden[0])
    np.testing.assert_array_equal(found.inputs[2], hidden[1])
    np.testing.assert_array_equal(found.output, hidden[2])
    assert found.features is found.inputs[-1]
    assert np.ravel(found.non_trainable).tolist() == [0.0, 0.0]


def test_training_gives_numbers_computed_by_hand():
    model = _model()
    mode = model.mode(model.initial_weights, X)
    assert int(mode.dropout_seed) == 2 + 1 + 3 and mode.batch_statistics
    found = model.apply_blocks(model.initial_weights, X, mode)
    # Scaled by half of the seed: -(3 * 2 h + 10), then 3 * 2 (h + 5).
    np.testing.assert_array_equal(found.features, [[-22.0], [-34.0]])
    np.testing.assert_array_equal(found.output, [[-102.0], [-174.0]])
    assert np.ravel(found.non_trainable).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("training", [True, False])
def test_predictions_are_the_output_of_the_chain(training):
    model = _model()
    mode = model.mode(model.initial_weights, X, training)
    np.testing.assert_array_equal(
        model.predict_on_batch(model.initial_weights, X, training=training),
        model.apply_blocks(model.initial_weights, X, mode).output,
    )
    assert (mode is EVALUATION) is not training


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 2), (1, 1), (1, 3), (2, 3), (3, 3)]
)
def test_a_part_of_the_chain_runs_by_itself(start, stop):
    model = _model()
    mode = model.mode(model.initial_weights, X)
    whole = model.apply_blocks(model.initial_weights, X, mode)
    levels = (*whole.inputs, whole.output)  # Between blocks, and at the ends.
    part = model.apply_blocks(model.initial_weights, levels[start], mode, start, stop)
    np.testing.assert_array_equal(part.output, levels[stop])
    assert len(part.inputs) == stop - start
    # Statistics of blocks that did not run stay as they are.
    ran = [float(start <= block < stop) for block in (1, 2)]
    assert np.ravel(part.non_trainable).tolist() == ran


def test_one_models_features_go_through_anothers_later_blocks():
    model = _model()
    statistics = (_array(7.0), _array(8.0))
    other = (tuple(-weight for weight in model.initial_weights[0]), statistics)
    # The mask of the first model's pass, frozen statistics.
    mode = attrs.evolve(model.mode(model.initial_weights, X), batch_statistics=False)
    own = model.apply_blocks(model.initial_weights, X, mode, stop=1)
    hybrid = model.apply_blocks(other, own.output, mode, start=1)
    # -(3 * -2 h - 10) of h = 2, 4, then 3 * -2 (h - 5).
    np.testing.assert_array_equal(hybrid.features, [[22.0], [34.0]])
    np.testing.assert_array_equal(hybrid.output, [[-102.0], [-174.0]])
    assert np.ravel(hybrid.non_trainable).tolist() == [7.0, 8.0]


def test_a_chain_is_a_block():
    flat = _model(tuple(BLOCKS))
    nested = _model((chain(chain(BLOCKS[0]), chain(), *BLOCKS[1:]),))
    assert nested.num_blocks == 1
    mode = flat.mode(flat.initial_weights, X)
    one, other = (
        model.apply_blocks(model.initial_weights, X, mode) for model in (flat, nested)
    )
    np.testing.assert_array_equal(one.output, other.output)
    np.testing.assert_array_equal(one.non_trainable, other.non_trainable)
    # Of a single block the features are the input.
    assert other.features is X


def test_frozen_weights_are_no_statistics_and_in_no_part():
    frozen = attrs.evolve(_scaled(), frozen=(True,))
    model = _model([frozen, chain(frozen, _scaled())])
    assert model.statistics == (False, False, True)
    assert model.mask_of_blocks(0, 1).non_trainable == (False, False, False)
    last = model.mask_of_blocks(1, 2)
    assert (last.trainable, last.non_trainable) == (
        (False, True, True),
        (False, False, True),
    )
    assert model.mask_of_batch_norm().non_trainable == model.statistics


def test_without_dropout_there_is_no_seed():
    model = _model((BLOCKS[0],), dropout_seed_fn=None)
    mode = model.mode(model.initial_weights, X)
    assert mode.dropout_seed is None and mode.batch_statistics
    spared = _model((BLOCKS[0],), dropout_seed_fn=lambda *_: pytest.fail("was called"))
    assert spared.mode(spared.initial_weights, X).dropout_seed is None


def test_weights_that_differ_by_client_are_vectorized():
    model = _model()
    rng = np.random.default_rng(0)
    clients = [
        tf.nest.map_structure(
            lambda weight: tf.constant(weight + np.float32(rng.integers(1, 5))),
            model.initial_weights,
        )
        for _ in range(3)
    ]

    def run(weights):
        with tf.GradientTape() as tape:
            tape.watch(weights[0])
            mode = model.mode(weights, X)
            result = model.apply_blocks(weights, X, mode, stop=2)
        gradients = tape.gradient(result.output, weights[0][:3])
        return result.output, result.non_trainable, gradients

    batched = tf.vectorized_map(
        run,
        tf.nest.map_structure(lambda *values: tf.stack(values), *clients),
        fallback_to_while_loop=False,
    )
    for index, one in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-6
            ),
            batched,
            run(one),
        )


def test_another_loss_keeps_the_blocks():
    model = _model()
    other = model.with_loss(
        loss_fn=lambda output, label, sample_weight=None: tf.constant(7.0),
        metrics_fns=_no_metrics(),
        input_spec=(SPEC[0], {"label": SPEC[1]}),
    )
    assert other.loss(X, X) == 7.0 and model.loss(X, X) == 0.0
    assert "label" in other.input_spec[1]
    assert other.num_blocks == 3
    np.testing.assert_array_equal(
        other.predict_on_batch(other.initial_weights, X, training=True),
        model.predict_on_batch(model.initial_weights, X, training=True),
    )


def test_it_trains_in_tffs_own_algorithms():
    model = _model((layer(_add, _array(2.0)), layer(tf.multiply, _array(3.0))))
    dataset = tf.data.Dataset.from_tensors((X, tf.zeros_like(X)))
    trained = []
    for model_or_fn in (
        model,
        lambda: tff.learning.models.model_from_functional(model),
    ):
        process = tff.learning.algorithms.build_weighted_fed_avg(
            model_or_fn,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
        )
        state = process.next(process.initialize(), [dataset]).state
        trained.append(process.get_model_weights(state).trainable)
    # d/da mean (b (x + a))^2 = 2 b^2 mean(x + a), d/db = 2 b mean (x + a)^2.
    expected = [2.0 - 0.01 * 2 * 9 * 4, 3.0 - 0.01 * 2 * 3 * 17]
    for weights in trained:
        np.testing.assert_allclose(np.ravel(weights), expected, rtol=1e-5)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(ValueError, match="at least one block, found none"):
        _model(())
    with pytest.raises(ValueError, match="dropout_seed_fn: the blocks have dropout"):
        _model(dropout_seed_fn=None)


@pytest.mark.parametrize(("start", "stop"), [(2, 1), (0, 4), (-1, 2), (4, None)])
def test_blocks_that_are_not_there_are_refused(start, stop):
    model = _model()
    with pytest.raises(ValueError, match=rf"stop <= 3, .*found start={start}, stop="):
        model.apply_blocks(model.initial_weights, X, EVALUATION, start, stop)


def test_weights_of_another_model_are_refused():
    model = _model()
    trainable, non_trainable = model.initial_weights
    with pytest.raises(ValueError, match="Expected 5 trainable weights, found 4"):
        model.apply_blocks((trainable[:-1], non_trainable), X, EVALUATION)
    with pytest.raises(ValueError, match="Expected 2 non-trainable weights, found 0"):
        model.apply_blocks((trainable, ()), X, EVALUATION)
