"""Evaluation of a model on held-out examples, during a run and at its end."""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import personalization
from tff_algos.simulation.batching import BatchSpec, batch_examples, derive_seed
from tff_algos.simulation.task import Task

_EVAL_BATCHES = BatchSpec(batch_size=100, num_epochs=1, shuffle=False)
_CLIENTS_PER_CALL = 10


def choose_clients(client_ids: Sequence[str], limit: int, seed: int) -> list[str]:
    """Returns all clients if `limit` is 0 or no fewer than there are, else a sample.

    The sample is uniform, a function of the seed, in the order of `client_ids`.
    """
    if limit in range(1, len(client_ids)):
        generator = np.random.default_rng(derive_seed(seed, "evaluation"))
        chosen = sorted(generator.choice(len(client_ids), limit, replace=False))
        return [client_ids[index] for index in chosen]
    return list(client_ids)


def build_evaluate_fn(
    task: Task, client_ids: Sequence[str]
) -> Callable[[Any], collections.OrderedDict[str, Any]]:
    """Builds `weights -> metrics` on the task's test set.

    That is its undivided test set or, where it has none, the clients' pooled test
    examples. The metrics are the model's, weighted by examples, by
    `tff.learning.algorithms.build_fed_eval`.
    """
    process = tff.learning.algorithms.build_fed_eval(task.model)
    if task.test_examples is not None:
        parts = [task.test_examples]
    else:
        parts = [task.examples(client_id, "test") for client_id in client_ids]
    datasets = [batch_examples(part, _EVAL_BATCHES, 0) for part in parts]
    initial_state = process.initialize()

    def evaluate(weights):
        state = process.set_model_weights(initial_state, weights)
        metrics = process.next(state, datasets).metrics
        return metrics["client_work"]["eval"]["current_round_metrics"]

    return evaluate


@attrs.frozen(kw_only=True)
class ClientResult:
    """A client's accuracy after each personalization epoch.

    Attributes:
      client_id: The client.
      num_train_examples: Examples that it fine-tuned on.
      num_test_examples: Examples that it was tested on; 0 leaves it out of means.
      accuracy: [P + 1]: after epochs 0 (the initial model), 1, ..., P.
      loss: [P + 1], likewise.
    """

    client_id: str
    num_train_examples: int
    num_test_examples: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]


def personalize(
    task: Task,
    weights: tff.learning.models.ModelWeights,
    client_ids: Sequence[str],
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    num_epochs: int,
    batch_size: int,
    seed: int = 0,
) -> Iterator[list[ClientResult]]:
    """Fine-tunes and tests the model on every client by itself.

    Args:
      task: The clients and the model.
      weights: The model to personalize; it is not changed.
      client_ids: The clients.
      optimizer: The optimizer of fine-tuning.
      num_epochs: Personalization epochs P, >= 0.
      batch_size: Examples per batch of fine-tuning.
      seed: Decides the order of the examples.

    Yields:
      The results of a few clients at a time, in order.
    """
    computation = personalization.build_personalization_eval(
        task.model,
        optimizer,
        num_epochs=num_epochs,
        batch_size=batch_size,
        max_num_clients=_CLIENTS_PER_CALL,
        seed=seed,
    )
    for start in range(0, len(client_ids), _CLIENTS_PER_CALL):
        group = client_ids[start : start + _CLIENTS_PER_CALL]
        yield _personalize_group(task, weights, group, computation)


def _personalize_group(task, weights, client_ids, computation):
    clients = [
        collections.OrderedDict(
            (
                f"{split}_data",
                tf.data.Dataset.from_tensor_slices(task.examples(client_id, split)),
            )
            for split in ("train", "test")
        )
        for client_id in client_ids
    ]
    curves = computation(weights, clients)[personalization.PERSONALIZED]
    results = []
    for index, client_id in enumerate(client_ids):
        num_train = len(task.examples(client_id, "train")[0])
        num_test = len(task.examples(client_id, "test")[0])
        # The computation returns clients without ids, in the order given.
        if int(curves["num_examples"][index][0]) != num_test:
            raise RuntimeError(
                f"The runtime returned client {client_id} out of order: "
                f"{curves['num_examples'][index][0]} test examples, not {num_test}."
            )
        results.append(
            ClientResult(
                client_id=client_id,
                num_train_examples=num_train,
                num_test_examples=num_test,
                accuracy=tuple(float(a) for a in curves["accuracy"][index]),
                loss=tuple(float(a) for a in curves["loss"][index]),
            )
        )
    return results


def personalization_summary(results: Sequence[ClientResult]) -> dict[str, Any]:
    """Returns uniform means and standard deviations (ddof 0) over clients.

    Clients without test examples are left out and counted.
    """
    tested = [result for result in results if result.num_test_examples]
    if not tested:
        return {"num_clients": 0, "num_clients_without_test": len(results)}
    accuracy = np.array([result.accuracy for result in tested])
    order = np.sort(accuracy, axis=0)
    decile = max(1, round(len(tested) / 10))
    return {
        "num_clients": len(tested),
        "num_clients_without_test": len(results) - len(tested),
        "initial_accuracy": accuracy[:, 0].mean(),
        "initial_accuracy_std": accuracy[:, 0].std(),
        "personalized_accuracy": accuracy[:, -1].mean(),
        "personalized_accuracy_std": accuracy[:, -1].std(),
        "accuracy_by_epoch": accuracy.mean(axis=0),
        "accuracy_std_by_epoch": accuracy.std(axis=0),
        "personalized_accuracy_worst_decile": order[:decile, -1].mean(),
        "personalized_accuracy_best_decile": order[-decile:, -1].mean(),
    }
