"""Client work with a personal part: weights of clients, phases, variables."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import one_client, problems
from tests.testing.one_client import CLIENT, MODEL, RATE, START, vector
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_processes import NUM_CLIENTS, cohort, process
from tff_algos import execution
from tff_algos.client_works import partly_personal_training
from tff_algos.client_works.partly_personal_training import Phase
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import FunctionalVariableModel, WeightMask
from tff_algos.models.block_model import Block, BlockModel

BIAS = WeightMask((False, True), ())


def _output(model=MODEL, **changes):
    work = partly_personal_training.build_partly_personal_client_work(
        model, tff.learning.optimizers.build_sgdm(0.1), personal=BIAS, **changes
    )
    row = {"seen": np.bool_(True), "weights": (np.float64(START[-1] + 1),)}
    data = collections.OrderedDict(
        examples=CLIENT.batches(),
        client_index=tff_algos.index_dataset(0),
        memory=execution.ElementDataset(row),
    )
    return one_client.run(work, data)


def _client_result(**changes):
    output = _output(**changes)
    return output.result[0], output.measurements["memory"]["row"]


def test_others_are_what_does_not_belong_to_a_part():
    assert partly_personal_training.others((True, False)) == (False, True)


def test_phases_without_passes_are_refused():
    with pytest.raises(HyperparameterError, match="phases=.*at least one with passes"):
        _output(phases=[Phase(passes=0)])


def test_a_client_starts_from_its_own_part_and_sends_the_others_change():
    result, row = _client_result()
    start = START + [0, 0, 0, 0, 0, 1]
    end = start - RATE * CLIENT.gradient(start)
    expected = np.append(START[:-1] - end[:-1], 0.0)
    np.testing.assert_allclose(vector(result.update), expected, rtol=1e-9)
    np.testing.assert_allclose(row["weights"][0], [end[-1]], rtol=1e-9)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_client_weighs_by_its_examples_however_often_it_passes_them(passes):
    result, _ = _client_result(phases=[Phase(passes=passes)])
    assert result.update_weight == len(CLIENT.y)


def test_a_phase_moves_nothing_but_its_own_weights():
    result, row = _client_result(phases=[Phase((True, False), 2)])
    np.testing.assert_array_equal(row["weights"][0], [START[-1] + 1])
    weights = np.append(START[:-1], START[-1] + 1)
    for _ in range(2):
        weights[:-1] -= RATE * CLIENT.gradient(weights)[:-1]
    expected = START[:-1] - weights[:-1]
    np.testing.assert_allclose(vector(result.update)[:-1], expected, rtol=1e-9)


def test_metrics_are_those_of_the_first_phase():
    phases = [Phase((True, False)), Phase((False, True))]
    first = _output(phases=phases[:1]).measurements["train"]["loss"]
    for model in (MODEL, lambda: FunctionalVariableModel(MODEL)):
        found = _output(model, phases=phases).measurements["train"]["loss"]
        assert found == pytest.approx(first, rel=1e-6)


def test_a_model_of_variables_trains_alone_to_the_same():
    data = cohort((0, 1)), cohort((0, 2))
    functional = run(process("local"), NUM_CLIENTS, *data)
    variables = run(process("local", "variable"), NUM_CLIENTS, *data)
    for k in range(3):
        np.testing.assert_allclose(variables.row(k), functional.row(k), rtol=1e-12)
        assert np.any(functional.row(k))


def test_frozen_weights_do_not_make_a_client_send_its_own_statistics():
    plain = problems.linear_model()

    def apply(trainable, non_trainable, x, mode):
        del mode
        mean, scale = non_trainable
        output = scale * tf.linalg.matvec(x, trainable[0]) + trainable[1]
        return output, (0.5 * (mean + tf.reduce_mean(x)), scale)

    block = Block(
        apply=apply,
        trainable=plain.initial_weights[0],
        non_trainable=(np.zeros([]), np.ones([])),
        frozen=(False, True),
    )
    model = BlockModel(
        [block],
        loss_fn=plain.loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=plain.input_spec,
    )
    for own, is_sent in (((True, False), False), ((False, False), True)):
        work = partly_personal_training.build_partly_personal_client_work(
            model,
            tff.learning.optimizers.build_sgdm(0.1),
            personal=WeightMask((False, True), own),
        )
        update = work.next.type_signature.result.result.member.update
        assert ("statistics" in tff.structure.name_list_with_nones(update)) == is_sent


def test_weight_decay_leaves_the_weights_of_other_phases():
    work = partly_personal_training.build_partly_personal_client_work(
        MODEL,
        tff.learning.optimizers.build_adamw(0.1, weight_decay=0.5),
        personal=BIAS,
        phases=[Phase((True, False), 2)],
    )
    row = {"seen": np.bool_(True), "weights": (np.float64(START[-1] + 1),)}
    data = collections.OrderedDict(
        examples=CLIENT.batches(),
        client_index=tff_algos.index_dataset(0),
        memory=execution.ElementDataset(row),
    )
    output = one_client.run(work, data)
    kept = output.measurements["memory"]["row"]["weights"][0]
    np.testing.assert_array_equal(kept, [START[-1] + 1])
