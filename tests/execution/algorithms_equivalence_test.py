"""This package's algorithms in this process, as on TFF's own runtime."""

import attrs
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated import learning

import tff_algos
from tasks.models import image
from tests.testing import equivalence
from tests.testing.numbered_clients import numbered
from tests.testing.speed import some_fast

SGD = learning.optimizers.build_sgdm


def _model():
    return image.build_emnist_model("2nn", only_digits=True, seed=0)


def _examples(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(count, *image.IMAGE_SHAPE)).astype(np.float32)
    return x, rng.integers(0, 10, count).astype(np.int32)


def _cohort(seed=0):
    return [
        tf.data.Dataset.from_tensor_slices(_examples(count, [seed, count])).batch(4)
        for count in (9, 4, 6)
    ]


PROCESSES = {
    "uga": lambda m: tff_algos.build_unbiased_gradient_aggregation(
        m, SGD(0.1), client_learning_rate=0.05, client_epochs_per_round=3
    ),
    "uga with checkpoints": lambda m: tff_algos.build_unbiased_gradient_aggregation(
        m,
        SGD(0.1),
        client_learning_rate=0.05,
        client_epochs_per_round=3,
        max_trajectory_bytes=0,
    ),
    "maml": lambda m: tff_algos.build_maml(
        m, SGD(0.1), client_learning_rate=0.05, client_steps_per_round=3
    ),
    "maml, held out": lambda m: tff_algos.build_maml(
        m,
        SGD(0.1),
        client_learning_rate=0.05,
        client_steps_per_round=3,
        query="held_out",
    ),
    "fomaml": lambda m: tff_algos.build_fomaml(
        m, SGD(0.1), client_learning_rate=0.05, client_steps_per_round=3, query="all"
    ),
    "fedmeta": lambda m: tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(m, SGD(0.05)),
        m,
        _examples(12, 7),
        meta_learning_rate=0.1,
        meta_steps=2,
        meta_batch_size=5,
    ),
    "fedmgda": lambda m: tff_algos.build_fed_mgda(m, SGD(0.05), epsilon=0.2),
    "fedmgda_plus": lambda m: tff_algos.build_fed_mgda_plus(m, SGD(0.05), SGD(0.1)),
    "mgda_prox": lambda m: tff_algos.build_mgda_prox(
        m, SGD(0.05), SGD(0.1), proximal_strength=0.5, cap=0.5
    ),
    "fedavg_n": lambda m: tff_algos.build_fed_avg_n(
        m, SGD(0.05), SGD(0.1), normalize_at="clients"
    ),
    "qfedavg": lambda m: tff_algos.build_q_fed_avg(m, SGD(0.05), q=0.5, lipschitz=20.0),
    "afl": lambda m: tff_algos.build_agnostic_federated_learning(
        m, SGD(0.05), num_clients=3, mixture_learning_rate=0.1
    ),
}


@attrs.frozen
class _WithoutIterations:
    """A process that does not tell its solver's iterations, which roundings decide."""

    process: learning.templates.LearningProcess

    def initialize(self):
        return self.process.initialize()

    def next(self, state, data):
        output = self.process.next(state, data)
        output.metrics["aggregator"].pop("qp_iterations", None)
        return output


FAST = ("uga", "maml, held out", "fedmeta", "mgda_prox", "qfedavg", "afl")


@pytest.mark.parametrize("name", some_fast(PROCESSES, FAST))
def test_both_runtimes_give_the_same_rounds(name):
    process = PROCESSES[name](_model())
    rounds = [_cohort(), _cohort(1)]
    if name == "afl":
        rounds = [numbered(cohort) for cohort in rounds]
    first, second = equivalence.assert_same_rounds(
        _WithoutIterations(process), *[[cohort] for cohort in rounds], atol=1e-6
    )
    change = (
        process.get_model_weights(second.state).trainable[0]
        - process.get_model_weights(first.state).trainable[0]
    )
    assert np.max(np.abs(change)) > 1e-4
