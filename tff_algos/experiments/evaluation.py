"""Evaluation of a model on held-out examples, during and after training."""

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.task import Split, Task
from tff_algos import aggregators
from tff_algos.client_works import personalization
from tff_algos.clients.batching import BatchSpec, batch_examples, derive_seed
from tff_algos.models import local_model

_EVAL_BATCHES = BatchSpec(batch_size=100, num_epochs=1, shuffle=False)
_CLIENTS_PER_CALL = 10


def choose_clients(client_ids: Sequence[str], limit: int, seed: int) -> list[str]:
    """Returns a sample of `limit` clients, or all clients if `limit` is 0 or too large.

    The sample is uniform, determined by the seed, and in the order of `client_ids`.
    """
    if limit in range(1, len(client_ids)):
        generator = np.random.default_rng(derive_seed(seed, "evaluation"))
        chosen = sorted(generator.choice(len(client_ids), limit, replace=False))
        return [client_ids[index] for index in chosen]
    return list(client_ids)


def build_client_evaluation(
    model: tff.learning.models.FunctionalModel,
) -> tff.Computation:
    """Builds the evaluation of one model on every client's examples.

    Args:
      model: The model; it is evaluated without dropout.

    Returns:
      A computation `(<ModelWeights@SERVER, {B*}@CLIENTS> -> <pooled=metrics,
      by_client=metrics>@SERVER)`: the model's metrics over all examples, and each
      client's metrics plus `mean_loss` (float64, the mean of its batches' losses,
      weighted by their numbers of examples), one row per client in order.
    """
    data_type = local_model.data_type(model)
    weights_type = local_model.weights_type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model)

    @tff.tensorflow.computation(weights_type, data_type)
    def evaluate(model_weights, dataset):
        view = local_model.create(model)

        @tf.function
        def evaluate_client(model_weights, dataset):
            weights = local_model.flatten(model_weights)

            def add_batch(state, batch):
                metrics, loss_sum, count = state
                evaluated = view.evaluate(weights, metrics, batch)
                size = tf.cast(evaluated.num_examples, tf.float64)
                loss = tf.cast(evaluated.loss, tf.float64)
                return evaluated.metrics, loss_sum + loss * size, count + size

            zero = tf.constant(0.0, tf.float64)
            metrics, loss_sum, count = dataset.reduce(
                (view.initial_metrics(), zero, zero), add_batch
            )
            unfinalized = view.unfinalized_metrics(metrics, tf.constant(True))
            own = collections.OrderedDict(model.finalize_metrics(unfinalized))
            own["mean_loss"] = tf.math.divide_no_nan(loss_sum, count)
            return unfinalized, own

        return evaluate_client(model_weights, dataset)

    gather = aggregators.build_gather_computation(evaluate.type_signature.result[1])

    @tff.federated_computation(
        tff.FederatedType(weights_type, tff.SERVER),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def evaluate_clients(weights, client_data):
        unfinalized, own = tff.federated_map(
            evaluate, (tff.federated_broadcast(weights), client_data)
        )
        return tff.federated_zip(
            collections.OrderedDict(
                pooled=aggregate_metrics(unfinalized), by_client=gather(own)
            )
        )

    return evaluate_clients


def _client_datasets(
    task: Task, client_ids: Sequence[str], split: Split
) -> list[tf.data.Dataset]:
    return [
        task.batches(client_id, split, _EVAL_BATCHES, 0) for client_id in client_ids
    ]


def build_evaluate_fn(
    task: Task, client_ids: Sequence[str], *, undivided: bool = True
) -> Callable[[Any], dict[str, Any]]:
    """Builds `weights -> metrics` on the task's and the clients' test sets.

    The model's metrics are those on the undivided test set or, if the task has none or
    `undivided` is False, on the clients' pooled test examples. Over clients with test
    examples, there are also the unweighted `client_accuracy_mean` and
    `client_accuracy_std` (ddof 0), and the means of the lowest and the highest tenth,
    `client_accuracy_worst_decile` and `client_accuracy_best_decile`.
    """
    evaluate_clients = build_client_evaluation(task.model)
    datasets = _client_datasets(task, client_ids, "test")
    test_set = None
    if undivided and task.test_examples is not None:
        test_set = [batch_examples(task.test_examples, _EVAL_BATCHES, 0)]

    def evaluate(weights):
        metrics = evaluate_clients(weights, datasets)
        pooled = metrics["pooled"]
        if test_set is not None:
            pooled = evaluate_clients(weights, test_set)["pooled"]
        by_client = metrics["by_client"]
        tested = np.asarray(by_client["accuracy"])[by_client["num_examples"] > 0]
        return dict(pooled) | {
            f"client_accuracy_{name}": value
            for name, value in distribution(tested).items()
        }

    return evaluate


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Returns `mean`, `std` (ddof 0), `worst_decile` and `best_decile` of clients.

    A decile is the mean of a tenth of the values, at least one. The result is empty if
    there are no values.
    """
    order = np.sort(np.asarray(values, np.float64))
    if not len(order):
        return {}
    decile = max(1, round(len(order) / 10))
    return {
        "mean": order.mean(),
        "std": order.std(),
        "worst_decile": order[:decile].mean(),
        "best_decile": order[-decile:].mean(),
    }


def build_improvement_fn(task: Task) -> Callable[..., dict[str, float]]:
    """Builds the measurement of how many clients are no worse off after a round.

    Returns:
      A function of clients and the weights before and after a round. It returns
      `improved_clients`: of the clients with training examples, the share whose mean
      training loss, without dropout and in float64, did not increase.
    """
    evaluate_clients = build_client_evaluation(task.model)

    def improvement(client_ids, before, after):
        datasets = _client_datasets(task, client_ids, "train")
        old, new = (
            evaluate_clients(weights, datasets)["by_client"]
            for weights in (before, after)
        )
        trained = np.asarray(old["num_examples"]) > 0
        if not np.any(trained):
            return {}
        # The comparison is false for NaN, which is not an improvement.
        improved = np.asarray(new["mean_loss"]) <= np.asarray(old["mean_loss"])
        return {"improved_clients": float(np.mean(improved[trained]))}

    return improvement


@attrs.frozen(kw_only=True)
class ClientResult:
    """A client's accuracy after each personalization epoch.

    Attributes:
      client_id: The client.
      seen: Whether it is a training client.
      num_train_examples: The number of examples for fine-tuning.
      num_test_examples: The number of test examples; 0 excludes the client from means.
      accuracy: [P + 1], after epochs 0 (the initial model), 1, ..., P; NaN without test
        examples, and so are the others.
      loss: [P + 1], after the same epochs.
      own_accuracy: Of the model that the client keeps between rounds, without
        fine-tuning; None if clients keep no models.
      own_loss: Of the same model.
    """

    client_id: str
    seen: bool = False
    num_train_examples: int
    num_test_examples: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    own_accuracy: float | None = None
    own_loss: float | None = None


def build_own_models_fn(
    task: Task, own_weights: Callable[[Any, str], Any]
) -> Callable[[Any, Sequence[ClientResult]], list[ClientResult]]:
    """Builds the test of the models that clients keep.

    Args:
      task: The clients and the model.
      own_weights: From the server's weights and a client's id to the weights that the
        client predicts with.

    Returns:
      A function of the server's weights and results, which returns the results with
      `own_accuracy` and `own_loss`.
    """
    evaluate_clients = build_client_evaluation(task.model)

    def with_own(weights, result: ClientResult) -> ClientResult:
        own = own_weights(weights, result.client_id)
        datasets = _client_datasets(task, [result.client_id], "test")
        metrics = evaluate_clients(own, datasets)["by_client"]
        (accuracy,), (loss,) = (
            _unless_empty(result.num_test_examples, metrics[name])
            for name in ("accuracy", "loss")
        )
        return attrs.evolve(result, own_accuracy=accuracy, own_loss=loss)

    return lambda weights, results: [with_own(weights, result) for result in results]


PersonalizeFn = Callable[
    [tff.learning.models.ModelWeights, Sequence[str]], Iterator[list[ClientResult]]
]


def build_personalize_fn(
    task: Task,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    num_epochs: int,
    batch_size: int,
    seed: int = 0,
) -> PersonalizeFn:
    """Builds the fine-tuning and test of a model on each client separately.

    Args:
      task: The clients and the model.
      optimizer: The optimizer of fine-tuning.
      num_epochs: Personalization epochs P, >= 0.
      batch_size: Examples per fine-tuning batch.
      seed: Seed of the order of the examples.

    Returns:
      A function of the weights to personalize, which are not modified, and of client
      ids. It yields the results of several clients at a time, in order.
    """
    computation = personalization.build_personalization_eval(
        task.model,
        optimizer,
        num_epochs=num_epochs,
        batch_size=batch_size,
        max_num_clients=_CLIENTS_PER_CALL,
        seed=seed,
    )

    def personalize(weights, client_ids):
        for start in range(0, len(client_ids), _CLIENTS_PER_CALL):
            group = client_ids[start : start + _CLIENTS_PER_CALL]
            yield _personalize_group(task, weights, group, computation)

    return personalize


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
    results, training = [], set(task.train_client_ids)
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
                seen=client_id in training,
                num_train_examples=num_train,
                num_test_examples=num_test,
                accuracy=_unless_empty(num_test, curves["accuracy"][index]),
                loss=_unless_empty(num_test, curves["loss"][index]),
            )
        )
    return results


def _unless_empty(num_examples: int, means: Sequence[Any]) -> tuple[float, ...]:
    """Returns means over examples; of none they are NaN, not 0."""
    return tuple(float(each) if num_examples else math.nan for each in means)


def evaluated_and_seen(
    task: Task, results: Sequence[ClientResult]
) -> tuple[list[ClientResult], list[ClientResult]]:
    """Returns the results of the task's evaluated clients, and of others that trained."""
    own = set(task.eval_client_ids)
    return (
        [result for result in results if result.client_id in own],
        [result for result in results if result.client_id not in own],
    )


def personalization_summary(results: Sequence[ClientResult]) -> dict[str, Any]:
    """Returns unweighted means and standard deviations (ddof 0) over clients.

    Clients without test examples are excluded and counted.
    """
    tested = [result for result in results if result.num_test_examples]
    if not tested:
        return {"num_clients": 0, "num_clients_without_test": len(results)}
    accuracy = np.array([result.accuracy for result in tested])
    own = [r.own_accuracy for r in tested if r.own_accuracy is not None]
    return {
        "num_clients": len(tested),
        "num_clients_without_test": len(results) - len(tested),
        **_named("initial_accuracy", accuracy[:, 0]),
        **_named("personalized_accuracy", accuracy[:, -1]),
        **(_named("own_accuracy", np.array(own)) if own else {}),
        "accuracy_by_epoch": accuracy.mean(axis=0),
        "accuracy_std_by_epoch": accuracy.std(axis=0),
    }


def _named(name: str, accuracy: np.ndarray) -> dict[str, float]:
    """Returns the distribution of accuracies, with the mean under `name` itself."""
    found = distribution(accuracy)
    return {name: found.pop("mean")} | {
        f"{name}_{key}": value for key, value in found.items()
    }
