"""The mean of the models of all rounds, against plain NumPy."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import learning

from tests.testing import problems
from tff_algos import finalizers
from tff_algos.models import local_model

UPDATES = np.random.default_rng(0).normal(size=(4, problems.NUM_FEATURES + 1))
RATE = 0.5


def averaging(dtype):
    """A finalizer that averages steps of SGD, and the type of its weights."""
    initial = local_model.build_initial_weights_computation(
        problems.linear_model(dtype)
    )
    weights_type = initial.type_signature.result
    steps = finalizers.build_apply_optimizer_finalizer(
        learning.optimizers.build_sgdm(RATE), weights_type
    )
    return finalizers.build_average_iterates_finalizer(steps, initial), steps


def vector(weights):
    return np.append(*(np.asarray(w, np.float64) for w in weights.trainable))


def run(finalizer, updates, dtype):
    """The outputs of rounds that start from each other's weights."""
    weights = learning.models.ModelWeights(
        *problems.linear_model(dtype).initial_weights
    )
    state, outputs = finalizer.initialize(), []
    for update in updates.astype(dtype):
        output = finalizer.next(state, weights, (update[:-1], update[-1]))
        state, weights = output.state, output.result
        outputs.append(output)
    return outputs


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)]
)
def test_the_state_holds_the_mean_of_all_models_and_the_result_is_the_last(
    dtype, tolerance
):
    finalizer, _ = averaging(dtype)
    start = problems.initial_vector(dtype)
    models = start - RATE * np.cumsum(UPDATES, axis=0)
    for number, output in enumerate(run(finalizer, UPDATES, dtype), start=1):
        np.testing.assert_allclose(
            vector(output.result), models[number - 1], rtol=tolerance, atol=tolerance
        )
        np.testing.assert_allclose(
            vector(output.state.average),
            np.mean(models[:number], axis=0),
            rtol=tolerance,
            atol=tolerance,
        )
        assert output.state.num_rounds == number


def test_the_rate_of_the_steps_can_be_read_and_set():
    finalizer, steps = averaging(np.float64)
    state = finalizer.initialize()
    hparams = finalizer.get_hparams(state)
    assert hparams == steps.get_hparams(steps.initialize())
    changed = finalizer.set_hparams(state, {**hparams, "learning_rate": 0.25})
    assert finalizer.get_hparams(changed)["learning_rate"] == 0.25
    assert changed.num_rounds == state.num_rounds


def test_before_the_first_round_the_mean_is_the_initial_model():
    finalizer, _ = averaging(np.float64)
    state = finalizer.initialize()
    np.testing.assert_array_equal(vector(state.average), problems.initial_vector())
    assert state.num_rounds == 0


def test_it_measures_and_rejects_as_the_finalizer_within():
    finalizer, within = averaging(np.float64)
    updates = np.stack([UPDATES[0], np.full_like(UPDATES[0], np.nan)])
    for output, expected in zip(
        run(finalizer, updates, np.float64),
        run(within, updates, np.float64),
        strict=True,
    ):
        np.testing.assert_array_equal(vector(output.result), vector(expected.result))
        assert output.measurements == pytest.approx(expected.measurements, nan_ok=True)
    assert output.measurements["num_rejected_rounds"] == 1
    np.testing.assert_allclose(vector(output.state.average), vector(output.result))


def test_an_update_whose_norm_overflows_is_rejected_and_not_averaged():
    finalizer, _ = averaging(np.float32)
    updates = np.stack([UPDATES[0], np.full_like(UPDATES[0], 1e30)])
    _, output = run(finalizer, updates, np.float32)
    assert output.measurements["num_rejected_rounds"] == 1
    assert output.state.num_rounds == 1


def _counting():
    """A finalizer that counts rounds in weights that are integers."""

    @tff.tensorflow.computation
    def initial():
        return learning.models.ModelWeights((tf.constant(0.0),), (tf.constant(0),))

    weights_type = initial.type_signature.result
    update_type = tff.to_type((np.float32,))

    @tff.tensorflow.computation(weights_type, update_type)
    def move(weights, update):
        return learning.models.ModelWeights(
            (weights.trainable[0] - update[0],), (weights.non_trainable[0] + 1,)
        )

    @tff.tensorflow.computation
    def none_rejected():
        return tf.constant(0)

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.SERVER),
        tff.FederatedType(update_type, tff.SERVER),
    )
    def next_fn(state, weights, update):
        moved = tff.federated_map(move, (weights, update))
        measured = collections.OrderedDict(
            num_rejected_rounds=tff.federated_eval(none_rejected, tff.SERVER)
        )
        return tff.templates.MeasuredProcessOutput(
            state, moved, tff.federated_zip(measured)
        )

    return learning.templates.FinalizerProcess(initialize, next_fn), initial


def test_of_integers_there_is_no_mean_but_the_last():
    finalizer = finalizers.build_average_iterates_finalizer(*_counting())
    state = finalizer.initialize()
    weights = learning.models.ModelWeights((np.float32(0),), (np.int32(0),))
    for _ in range(3):
        output = finalizer.next(state, weights, (np.float32(1),))
        state, weights = output.state, output.result
    assert state.average.non_trainable[0] == 3
    assert state.average.trainable[0] == pytest.approx(-2.0)
