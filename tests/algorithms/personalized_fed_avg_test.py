"""Personalized FedAvg: two stages, of which the second starts from the weights alone."""

import collections

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, problems
from tests.testing.linear_processes import EQUAL_CLIENTS
from tests.testing.numpy_rounds import RATE, adam, assert_close, cohort, mean_delta

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_personalized_fedavg_carries_the_weights_and_nothing_else():
    processes = tff_algos.build_personalized_fed_avg(
        problems.linear_model(np.float32), SGD(RATE)
    )
    data = cohort(np.float32)
    pretrained = processes.pretrain.initialize()
    for _ in range(2):
        pretrained = processes.pretrain.next(pretrained, data).state
    finetuned = processes.finetune.set_model_weights(
        processes.finetune.initialize(),
        processes.pretrain.get_model_weights(pretrained),
    )
    finetuned = processes.finetune.next(finetuned, data).state

    expected, velocity = START, 0.0
    for _ in range(2):
        velocity = 0.9 * velocity + mean_delta(expected)
        expected = expected - velocity
    expected = adam(expected, [lambda w: mean_delta(w, uniform=True)])
    assert_close(problems.vector_of(processes.finetune, finetuned), expected)


def test_personalized_fedavg_without_finetuning_is_fedavgm_and_the_evaluation():
    model, optimizer = problems.linear_model(np.float32), SGD(RATE)
    processes = tff_algos.build_personalized_fed_avg(model, optimizer)
    fedavgm = tff_algos.build_fed_avg_m(model, optimizer, server_momentum=0.9)
    data = cohort(np.float32)
    pretrained, trained = processes.pretrain.initialize(), fedavgm.initialize()
    for _ in range(2):
        pretrained = processes.pretrain.next(pretrained, data).state
        trained = fedavgm.next(trained, data).state
    finetuned = processes.finetune.set_model_weights(
        processes.finetune.initialize(),
        processes.pretrain.get_model_weights(pretrained),
    )
    evaluate = tff_algos.build_personalization_eval(model, optimizer, num_epochs=1)
    held_out = [
        collections.OrderedDict(train_data=each.unbatch(), test_data=each.unbatch())
        for each in data
    ]
    found = evaluate(processes.finetune.get_model_weights(finetuned), held_out)
    expected = evaluate(fedavgm.get_model_weights(trained), held_out)
    for metrics in ("baseline_metrics", "personalized_metrics"):
        np.testing.assert_array_equal(found[metrics]["loss"], expected[metrics]["loss"])


def test_finetuning_with_the_steps_the_optimizer_and_the_state_of_pretraining_goes_on():
    # 6 examples, batches of 2: 2 epochs are K = 6 steps on every client.
    epochs = linear_processes.cohort(EQUAL_CLIENTS, epochs=2, dtype=np.float32)
    steps = [c.batches(2, 5, np.float32).take(6) for c in EQUAL_CLIENTS]
    processes = tff_algos.build_personalized_fed_avg(
        problems.linear_model(np.float32),
        SGD(RATE),
        finetune_server_optimizer_fn=SGD(1.0, momentum=0.9),
    )
    first = processes.pretrain.next(processes.pretrain.initialize(), epochs).state
    longer = processes.pretrain.next(first, epochs).state
    goes_on = processes.finetune.next(first, steps).state
    expected = problems.vector_of(processes.pretrain, longer)
    assert_close(problems.vector_of(processes.finetune, goes_on), expected)
    # With an optimizer that starts afresh it does not.
    fresh = processes.finetune.set_model_weights(
        processes.finetune.initialize(), processes.pretrain.get_model_weights(first)
    )
    afresh = processes.finetune.next(fresh, steps).state
    gap = problems.vector_of(processes.finetune, afresh) - expected
    assert np.max(np.abs(gap)) > 1e-2
