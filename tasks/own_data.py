"""A task of a user's own arrays, table or clients, in one call.

    task = tasks.from_arrays(features, labels, client_ids)
    task = tasks.from_data_frame(frame, label="income", client_column="hospital")
    task = tasks.from_client_data(client_data)
    experiments.run("fedavg", task)

Labels may be words or whole numbers; features are numbers. Without ids, examples are
divided by a partition.
"""

import collections
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tasks import array_data, own_arrays, own_clients, own_table, partition
from tasks.array_data import Division
from tasks.array_source import Arrays
from tasks.models import by_shape, keras_classifier
from tasks.models.by_shape import ModelId
from tasks.task import METRICS, Task, TaskError
from tff_algos import column_roles, messages
from tff_algos.clients.batching import derive_seed
from tff_algos.column_roles import Roles
from tff_algos.hyperparameters import (
    HyperparameterError,
    UnusableHyperparameterError,
    hparam,
    record,
)

DEFAULT_PARTITION = "iid:10"
_MAX_NAMES = 10


@record
class Treatment:
    """What becomes of own data, whatever they are read from.

    Attributes:
      model: A name of `tasks.models.by_shape`, a Keras model that returns logits, or a
        functional model of the features as float32 and the classes' indices as int32,
        with the metrics "loss", "accuracy", "num_examples" and "num_batches".
      partition: Division among clients, where the data name none.
      client_test_fraction: Share of each client's examples that is held out.
      eval_client_fraction: Share of the clients that do not train and are those
        evaluated; 0 to evaluate all, on what each holds out.
      standardize: Whether features get mean 0 and deviation 1 over the training
        examples; of images, each channel.
      seed: Seed of the division and the initial weights.
    """

    model: str | tf_keras.Model | tff.learning.models.FunctionalModel = "mlp"
    partition: Annotated[str | None, hparam()] = None
    client_test_fraction: Annotated[float, hparam(above=0, below=1)] = 0.2
    eval_client_fraction: Annotated[float, hparam(low=0, below=1)] = 0.0
    standardize: Annotated[bool, hparam()] = True
    seed: Annotated[int, hparam(low=0)] = 0

    def __attrs_post_init__(self):
        names = get_args(ModelId)
        models = tf_keras.Model | tff.learning.models.FunctionalModel
        if self.model not in names and not isinstance(self.model, models):
            raise HyperparameterError(
                "model",
                self.model,
                f"one of {', '.join(names)}, a tf_keras.Model or a FunctionalModel",
            )


def from_arrays(
    features: np.ndarray,
    labels: Sequence[Any] | np.ndarray,
    client_ids: Sequence[Any] | np.ndarray | None = None,
    *,
    name: str = "own_data",
    **treatment: Any,
) -> Task:
    """Returns the task of arrays with examples along the first axis.

    Args:
      features: Numbers [n, features], or images [n, height, width] or [n, height,
        width, channels]; uint8 images are scaled to [0, 1].
      labels: Classes [n], words or whole numbers.
      client_ids: Each example's client [n]; None to divide examples by `partition`.
      name: What the data are called in titles and messages.
      **treatment: `model`, `partition`, `client_test_fraction`, `eval_client_fraction`,
        `standardize` and `seed`, as in `Treatment`.

    Raises:
      TaskError: If the data do not fit each other or the model; it says what is expected.
      HyperparameterError: If an argument is invalid.
      TypeError: If there is no such argument.
    """
    how = _treatment(treatment)
    if client_ids is not None and how.partition is not None:
        raise UnusableHyperparameterError(
            "partition", how.partition, "where examples have clients"
        )
    x = own_arrays.checked_features(features, name)
    y, classes = own_arrays.as_classes(labels, len(x), name)
    ids, parts = _clients(y, client_ids, how, name)
    task = _task(x, y, ids, parts, classes, name, how)
    mark = _fingerprint((x, y), ids, parts, how, are_named=client_ids is not None)
    return attrs.evolve(task, fingerprint=mark)


def from_data_frame(
    frame: Any,
    label: str,
    client_column: str | None = None,
    *,
    features: str | Sequence[str] | None = None,
    categories: str | Sequence[str] = (),
    name: str = "own_data",
    **treatment: Any,
) -> Task:
    """Returns the task of a table: a pandas data frame, or arrays by column.

    Args:
      frame: The table.
      label: The column of the classes.
      client_column: The column that names each row's client; None to divide rows by
        `partition`.
      features: The column or columns to learn from; None for all others.
      categories: Those of them that are words, or numbers without an order; each value
        becomes a feature of 0 and 1.
      name: What the data are called in titles and messages.
      **treatment: `model`, `partition`, `client_test_fraction`, `eval_client_fraction`,
        `standardize` and `seed`, as in `Treatment`.

    Raises:
      TaskError: If the data do not fit each other or the model; it says what is expected.
      HyperparameterError: If an argument is invalid.
      TypeError: If there is no such argument.
    """
    if not isinstance(frame, Mapping) and not hasattr(frame, "columns"):
        expected = "a pandas data frame, or arrays by column; from_arrays takes arrays"
        raise HyperparameterError("frame", frame, expected)
    keys = list(frame.columns if hasattr(frame, "columns") else frame)
    counts = collections.Counter(map(str, keys))
    if len(counts) < len(keys):
        repeated = next(key for key in keys if counts[str(key)] > 1)
        raise TaskError(f"{name} has two columns {messages.shown(str(repeated))}.")
    roles = Roles(
        label=str(label),
        client_column=None if client_column is None else str(client_column),
        features=None if features is None else column_roles.names("features", features),
        categories=column_roles.names("categories", categories),
    )
    used = {roles.label, roles.client_column, *(roles.features or map(str, keys))}
    for key in keys:
        if str(key) in used:
            what = f"values of column {messages.shown(str(key))}"
            own_arrays.refuse_masked(frame[key], what, name)
    columns = {
        str(key): own_arrays.as_array(
            frame[key], f"{name}: column {messages.shown(str(key))}"
        )
        for key in keys
    }
    _check_columns({key: columns[key] for key in columns if key in used}, name)
    table = own_table.Table(name=name, columns=columns)
    x, y, ids = own_table.encode(table, roles)
    task = from_arrays(x, y, ids, name=name, **treatment)
    return with_feature_names(task, own_table.feature_names(table, roles))


def _treatment(settings: Mapping[str, Any]) -> Treatment:
    names = [field.name for field in attrs.fields(Treatment)]
    for name in settings:
        if name not in names:
            expected = f"expected one of {', '.join(names)}"
            raise TypeError(f"unexpected argument {name}=, {expected}.")
    return Treatment(**settings)


def _check_columns(columns: Mapping[str, np.ndarray], name: str) -> None:
    """Raises `TaskError` unless all columns have one value for each row."""
    shape = [max((len(each) for each in columns.values() if each.ndim), default=0)]
    for key, column in columns.items():
        if list(column.shape) != shape:
            raise TaskError(
                f"{name}: column {messages.shown(key)} has shape "
                f"{list(column.shape)}, expected {shape}, a value for each row."
            )


def with_feature_names(task: Task, names: Sequence[str]) -> Task:
    """Returns the task of a table, whose encoding says what its features are."""
    return attrs.evolve(task, encoding={"features": list(names), **task.encoding})


def with_unit(task: Task, unit: float) -> Task:
    """Returns a task whose encoding is of features that are `unit` times as large."""
    scaled = {
        name: np.multiply(task.encoding[name], unit).tolist()
        for name in ("mean", "deviation")
    }
    return attrs.evolve(task, encoding={**task.encoding, **scaled})


def from_client_data(
    client_data: tff.simulation.datasets.ClientData,
    *,
    features: str | None = None,
    label: str | None = None,
    name: str = "own_data",
    **treatment: Any,
) -> Task:
    """Returns the task of TFF's clients; all examples are read into memory.

    Args:
      client_data: Clients whose elements are pairs (features, label), or mappings.
      features: The key of the features in a mapping; None if it has one besides the
        label's, and for pairs.
      label: The key of the label in a mapping; None for "label" or "y", and for pairs.
      name: What the data are called in titles and messages.
      **treatment: `model`, `partition`, `client_test_fraction`, `eval_client_fraction`,
        `standardize` and `seed`, as in `Treatment`.

    Raises:
      TaskError: If the data do not fit each other or the model; it says what is expected.
      HyperparameterError: If an argument is invalid.
      TypeError: If there is no such argument.
    """
    if not isinstance(client_data, tff.simulation.datasets.ClientData):
        expected = "a tff.simulation.datasets.ClientData"
        raise HyperparameterError("client_data", client_data, expected)
    x, y, ids = own_clients.read(client_data, features, label, name)
    return from_arrays(x, y, ids, name=name, **treatment)


def _clients(
    labels: np.ndarray, client_ids: Any, how: Treatment, name: str
) -> tuple[tuple[str, ...], Sequence[np.ndarray]]:
    """Returns the clients and the indices of each one's examples."""
    if client_ids is not None:
        return own_arrays.by_client(client_ids, len(labels), name)
    spec = partition.parse(how.partition or DEFAULT_PARTITION)
    parts = partition.divide(labels, spec, how.seed)
    return array_data.client_ids(spec.num_clients), parts


def _task(
    x: np.ndarray,
    y: np.ndarray,
    client_ids: tuple[str, ...],
    parts: Sequence[np.ndarray],
    classes: Sequence[str],
    name: str,
    how: Treatment,
) -> Task:
    train, held_out = partition.hold_out(parts, how.client_test_fraction, how.seed)
    trains, evaluates = _roles(client_ids, how)
    numbers = {client_id: number for number, client_id in enumerate(client_ids)}
    tests = np.concatenate([held_out[numbers[client_id]] for client_id in evaluates])
    if not len(tests):
        sizes = [len(parts[numbers[client_id]]) for client_id in evaluates]
        raise TaskError(_nothing_held_out(sizes, len(parts), name, how))
    trained_on = np.concatenate([train[numbers[client_id]] for client_id in trains])
    scaling = own_arrays.Scaling.of(x[trained_on], standardize=how.standardize)
    arrays = Arrays(x_train=x, y_train=y, x_test=x[tests], y_test=y[tests])
    task = array_data.divided_task(
        arrays,
        Division(client_ids=client_ids, train=train, test=held_out, test_of="train"),
        name=name,
        source="own",
        preprocess=scaling,
        model=_model(how, x.shape[1:], len(classes), name),
        seed=how.seed,
        notice=_notice(name, x, classes, client_ids),
    )
    return attrs.evolve(
        task,
        train_client_ids=trains,
        eval_client_ids=evaluates,
        encoding={
            "classes": list(classes),
            "mean": np.asarray(scaling.mean).tolist(),
            "deviation": np.asarray(scaling.deviation).tolist(),
        },
    )


def _nothing_held_out(
    sizes: Sequence[int], num_clients: int, name: str, how: Treatment
) -> str:
    """Says why there is nothing to test on, given the evaluated clients' sizes."""
    some = len(sizes) < num_clients
    clients = f"{'evaluated ' if some else ''}client{'s' if len(sizes) > 1 else ''}"
    # One of a client's examples is always left to train on.
    can_rise = max(sizes) > 1
    remedy = (
        "raise eval_client_fraction or change the seed"
        if some
        else "have fewer clients"
    )
    return (
        f"{name}: client_test_fraction={how.client_test_fraction:g} holds out no "
        f"example of {len(sizes)} {clients} with {sum(sizes)} in all: "
        f"{'raise it, or ' if can_rise else ''}{remedy}."
    )


def _fingerprint(
    examples: Sequence[np.ndarray],
    client_ids: Sequence[str],
    parts: Sequence[np.ndarray],
    how: Treatment,
    *,
    are_named: bool,
) -> str:
    """Returns digests of the examples and their treatment, and of what the seed decides.

    That is the division among clients, unless the data name them.
    """
    settings = attrs.asdict(how, recurse=False)
    seed = settings.pop("seed")
    if isinstance(how.model, tf_keras.Model):
        settings["model"] = keras_classifier.architecture(how.model)
    elif not isinstance(how.model, str):
        # Not their values: a model that is built again has other initial weights.
        weights = tf.nest.flatten(how.model.initial_weights)
        shapes = [(np.shape(each), np.asarray(each).dtype.str) for each in weights]
        settings["model"] = (how.model.input_spec, shapes)
    fixed, drawn = ([*examples, *parts], []) if are_named else (examples, parts)
    data = _digest(fixed, (tuple(client_ids), settings))
    return f"{data[:16]}-{_digest(drawn, seed)[:8]}"


def _digest(arrays: Sequence[np.ndarray], others: Any) -> str:
    digest = hashlib.sha256(repr(others).encode())
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _roles(
    client_ids: tuple[str, ...], how: Treatment
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the clients that train and those that are evaluated."""
    if not how.eval_client_fraction:
        return client_ids, client_ids
    count = len(client_ids)
    size = max(1, round(how.eval_client_fraction * count))
    if size >= count:
        raise TaskError(
            f"eval_client_fraction={how.eval_client_fraction:g} leaves none of "
            f"{count} clients to train."
        )
    rng = np.random.default_rng(derive_seed(how.seed, "evaluation clients"))
    chosen = {client_ids[index] for index in rng.permutation(count)[:size]}
    trains = tuple(each for each in client_ids if each not in chosen)
    return trains, tuple(each for each in client_ids if each in chosen)


def _model(how: Treatment, shape: Sequence[int], num_classes: int, name: str):
    if isinstance(how.model, str):
        return by_shape.build(how.model, shape, num_classes, how.seed)
    try:
        if isinstance(how.model, tf_keras.Model):
            return keras_classifier.build(how.model, shape, num_classes)
    except keras_classifier.KerasModelError as error:
        reason = str(error).rstrip(".")
        raise TaskError(f"{name}: model={how.model.name}: {reason}.") from error
    _check_functional(how.model, shape, name)
    return how.model


def _check_functional(
    model: tff.learning.models.FunctionalModel, shape: Sequence[int], name: str
) -> None:
    specs = (
        tf.TensorSpec([None, *shape], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )
    taken = model.input_spec
    if not isinstance(taken, tuple | list) or not (
        [type(each) for each in taken] == [tf.TensorSpec] * len(specs)
    ):
        raise TaskError(
            f"{name}: the model takes {taken}, expected a pair (x, y) of tensors."
        )
    for what, expected, found in zip(("examples", "labels"), specs, taken, strict=True):
        # Not compatible: batches differ in size, so a fixed one would fail later.
        if found.shape.as_list() != expected.shape.as_list() or (
            found.dtype != expected.dtype
        ):
            raise TaskError(f"{name}: the model takes {found}, {what} are {expected}.")
    missing = [each for each in METRICS if each not in model.initialize_metrics_state()]
    if missing:
        raise TaskError(
            f"{name}: the model has no metric {missing[0]}; expected "
            f"{', '.join(METRICS)}, the last two from tff.learning.metrics."
            "NumExamplesCounter() and NumBatchesCounter()."
        )


def _notice(
    name: str, x: np.ndarray, classes: Sequence[str], client_ids: Sequence[str]
) -> str:
    shown = ", ".join(messages.shortened(each, 20) for each in classes[:_MAX_NAMES])
    more = ", ..." if len(classes) > _MAX_NAMES else ""
    shape = " x ".join(map(str, x.shape[1:]))
    unit = "pixels" if x.ndim > 2 else "feature" if x.shape[1] == 1 else "features"
    return (
        f"{name}: {len(x)} examples of {shape} {unit} in {len(classes)} classes "
        f"({shown}{more}), {len(client_ids)} clients."
    )
