"""Algorithms that remember or look into blocks, each process built once for all tests."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems, problems
from tests.testing.remembering_cohorts import Cohort
from tff_algos import clients
from tff_algos.models.block_model import Block, BlockModel
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
NUM_CLIENTS = 7
_SIZES = (6, 4, 7, 5, 3, 6, 5)
CLIENTS = problems.clients(_SIZES)
BLOCK_CLIENTS = block_problems.clients(_SIZES)
BATCH, EPOCHS = 2, 2
# Of local steps; TFF makes a float32 of it.
RATE = problems.f32(0.1)


def linear_model_with_statistics() -> BlockModel:
    """Returns the linear model with the mean of the last batch's inputs as statistic."""
    linear = problems.linear_model()

    def apply(trainable, non_trainable, x, mode):
        if mode.batch_statistics:
            non_trainable = (tf.reduce_mean(x, axis=0),)
        return tf.linalg.matvec(x, trainable[0]) + trainable[1], non_trainable

    block = Block(
        apply=apply,
        trainable=linear.initial_weights[0],
        non_trainable=(np.zeros(problems.NUM_FEATURES),),
    )
    return BlockModel(
        [block],
        loss_fn=linear.loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=linear.input_spec,
    )


def linear_model_with_a_frozen_weight() -> BlockModel:
    """Returns the linear model with an infinite number that training does not change."""
    linear = problems.linear_model()

    def apply(trainable, non_trainable, x, mode):
        del mode
        return tf.linalg.matvec(x, trainable[0]) + trainable[1], non_trainable

    block = Block(
        apply=apply,
        trainable=linear.initial_weights[0],
        non_trainable=(np.array(np.inf),),
        frozen=(True,),
    )
    return BlockModel(
        [block],
        loss_fn=linear.loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=linear.input_spec,
    )


def _build_of_rate(build):
    """Returns a builder whose local steps have a rate instead of an optimizer."""

    def build_of_optimizer(model, client_optimizer, **kwargs):
        del client_optimizer
        return build(model, client_learning_rate=0.1, **kwargs)

    return build_of_optimizer


_EVERYBODY = {"num_clients": NUM_CLIENTS}
_BUILDERS = {
    "fedavg": (tff_algos.build_fed_avg, {}),
    "fedavgm": (tff_algos.build_fed_avg_m, {}),
    "scaffold": (_build_of_rate(tff_algos.build_scaffold), _EVERYBODY),
    "feddyn": (tff_algos.build_fed_dyn, _EVERYBODY | {"dynamic_regularization": 0.5}),
    "mifa": (tff_algos.build_mifa, _EVERYBODY),
    "mifam": (tff_algos.build_mifa_m, _EVERYBODY),
    "gradma_s": (tff_algos.build_gradma_s, _EVERYBODY),
    "gradma_w": (tff_algos.build_gradma_w, {}),
    "gradma": (tff_algos.build_gradma, _EVERYBODY),
    "moon": (tff_algos.build_moon, {"contrastive_strength": 2.0}),
    "moonm": (tff_algos.build_moon_m, {"contrastive_strength": 2.0}),
    "fedmlb": (tff_algos.build_fed_mlb, {}),
    "fedmlbm": (tff_algos.build_fed_mlb_m, {}),
    "ditto": (tff_algos.build_ditto, {"personal_strength": 0.5}),
    "pfedme": (
        _build_of_rate(tff_algos.build_pfedme),
        {"personal_strength": 2.0, "personal_steps": 3, "personal_learning_rate": 0.2},
    ),
    "apfl": (_build_of_rate(tff_algos.build_apfl), {"mixing": 0.3}),
    "fedper": (tff_algos.build_fed_per, {}),
    "fedrep": (tff_algos.build_fed_rep, {}),
    "lg_fedavg": (tff_algos.build_lg_fed_avg, {}),
    "fedbn": (tff_algos.build_fed_bn, {}),
    "local": (tff_algos.build_local, {}),
}
# All but FedAvg, with momentum or without.
ALGORITHMS = (
    "scaffold",
    "feddyn",
    "mifa",
    "gradma_s",
    "gradma_w",
    "gradma",
    "moon",
    "fedmlb",
)


def model_of(name: str) -> str:
    """Returns the model that an algorithm is tested on: "linear" or "blocks"."""
    of_blocks = ("moon", "fedmlb", "fedper", "fedrep", "lg_fedavg", "fedbn")
    return "blocks" if name.startswith(of_blocks) else "linear"


@functools.cache
def process(
    name: str, model: str | None = None, **changes
) -> tff.learning.templates.LearningProcess:
    """Returns an algorithm whose clients take steps of rate 0.1.

    Args:
      name: The algorithm.
      model: "linear" or "blocks", in float64; "linear32"; "variable", the linear one
        with its weights in variables; "statistics", the linear one with the mean of the
        last batch's inputs for a non-trainable weight; "frozen", the linear one with a
        frozen infinite weight; "attacked", the algorithm's own for attacked batches.
      **changes: Arguments of its builder.
    """
    models = {
        "linear": problems.linear_model,
        "linear32": lambda: problems.linear_model(np.float32),
        "variable": lambda: lambda: FunctionalVariableModel(problems.linear_model()),
        "blocks": block_problems.block_model,
        "statistics": linear_model_with_statistics,
        "frozen": linear_model_with_a_frozen_weight,
        "attacked": lambda: clients.attacked_model(models[model_of(name)]()),
    }
    build, kwargs = _BUILDERS[name]
    return build(models[model or model_of(name)](), SGD(0.1), **kwargs | changes)


def cohort(
    numbers=(0, 1, 2, 3), model: str = "linear", batch_size=BATCH, epochs=EPOCHS
) -> Cohort:
    """Returns the batches of clients by their numbers."""
    own = BLOCK_CLIENTS if model == "blocks" else CLIENTS
    dtype = np.float32 if model == "linear32" else np.float64
    return {k: own[k].batches(batch_size, epochs, dtype) for k in numbers}


def some_rounds(model: str = "linear") -> list[Cohort]:
    """Returns three cohorts of clients that come and go; two come twice."""
    return [cohort(numbers, model) for numbers in ((0, 1, 2), (3, 1), (0, 3, 6, 2))]


def invalid_clients(model: str = "linear") -> Cohort:
    """Returns clients 4, 5 and 6: one of NaN, one without examples, one of NaN."""
    x = np.full((3, problems.NUM_FEATURES), np.nan)
    make, y = problems.Client, np.ones(3)
    if model == "blocks":
        make, y = block_problems.Client, np.zeros(3, np.int32)
    broken = make(x, y).batches(BATCH)
    return {4: broken, 5: make(x[:0], y[:0]).batches(BATCH), 6: broken}
