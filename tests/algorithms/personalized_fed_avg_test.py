"""Personalized FedAvg: two stages, of which the second starts from the weights alone."""

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
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
