"""A run's model as files: weights, and a SavedModel that predicts without this package.

    model = experiments.load_model("runs/fedavg-emnist-...")
    model.predict(images)
    model.keras_model()

In the folder `model` of a run: `saved_model`, `weights.npz` (of the last round),
`round_N.npz` for each checkpoint and, of own data, `encoding.json`: the names of the
classes, of a table those of the features, and the mean and deviation by which features
were scaled. Arrays are called trainable_0, trainable_1, ..., non_trainable_0, ... in
the order of the model's weights.
"""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from zipfile import BadZipFile, is_zipfile

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tff_algos import messages
from tff_algos.experiments import files, run_folders
from tff_algos.experiments.errors import ModelFileError
from tff_algos.models import graph_prediction
from tff_algos.models.keras_model import build_keras_model

_SAVED_MODEL, _ENCODING = "saved_model", "encoding.json"
_SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_PARTIAL = re.compile(
    rf"\.({run_folders.ROUND.pattern}|weights\.npz|saved_model|encoding\.json)"
    r"\.[0-9a-f]{8}"
)


class InputError(ValueError):
    """A batch has another shape or type than the model's inputs."""

    def __init__(self, batch: np.ndarray, spec: tf.TensorSpec) -> None:
        shape = ", ".join("n" if size is None else str(size) for size in spec.shape)
        is_one = spec.shape[1:].is_compatible_with(batch.shape)
        hint = "; a batch of one example is x[np.newaxis]" if is_one else ""
        super().__init__(
            f"x has shape {list(batch.shape)} and type {batch.dtype}, expected "
            f"[{shape}] and {spec.dtype.name}{hint}."
        )


class _Exported(tf.Module):
    """A functional model with its weights, as functions of a SavedModel."""

    def __init__(
        self,
        model: tff.learning.models.FunctionalModel,
        weights: tff.learning.models.ModelWeights,
    ) -> None:
        super().__init__()
        trainable, non_trainable = _flat(weights)
        self.trainable = [tf.Variable(value) for value in trainable]
        self.non_trainable = [
            tf.Variable(value, trainable=False) for value in non_trainable
        ]

        predict_on_batch = graph_prediction.anywhere(model)

        def predict(trainable: Any, non_trainable: Any, x: Any, training: bool) -> Any:
            packed = tuple(
                # Tensors, since functions of a model would refer to variables.
                tf.nest.pack_sequence_as(like, list(map(tf.identity, values)))
                for like, values in zip(
                    model.initial_weights, (trainable, non_trainable), strict=True
                )
            )
            return predict_on_batch(packed, x, training)

        x_spec = model.input_spec[0]
        specs = [
            [tf.TensorSpec.from_tensor(tf.convert_to_tensor(v)) for v in values]
            for values in (trainable, non_trainable)
        ]
        self.predict = tf.function(
            lambda t, n, x: predict(t, n, x, False), input_signature=[*specs, x_spec]
        )
        self.predict_in_training = tf.function(
            lambda t, n, x: predict(t, n, x, True), input_signature=[*specs, x_spec]
        )

        def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = predict(self.trainable, self.non_trainable, x, False)
            if tf.is_tensor(outputs):
                return {"outputs": outputs}
            # A signature has no structures.
            flat = enumerate(tf.nest.flatten(outputs))
            return {f"outputs_{index}": each for index, each in flat}

        self.serve = tf.function(
            serve, input_signature=[tf.TensorSpec(x_spec.shape, x_spec.dtype, "x")]
        )


def _flat(weights: tff.learning.models.ModelWeights) -> tuple[list, list]:
    return tf.nest.flatten(weights.trainable), tf.nest.flatten(weights.non_trainable)


def partial_writes(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns what interrupted writes of a run's model left in its results folder."""
    hidden = (directory / run_folders.MODEL).glob(".*")
    return [path for path in hidden if _PARTIAL.fullmatch(path.name)]


def write_round(
    directory: pathlib.Path,
    round_num: int,
    model: tff.learning.models.FunctionalModel,
    weights: tff.learning.models.ModelWeights,
    kept: Iterable[int],
    encoding: Mapping[str, Any] | None = None,
) -> bool:
    """Writes the weights after a round, for `load_model` by round.

    Args:
      directory: The results folder.
      round_num: The round, whose checkpoint was saved.
      model: The model; written once, so that the weights can be used after a crash.
      weights: Its weights.
      kept: The rounds whose weights stay.
      encoding: `tasks.Task.encoding`.

    Returns:
      Whether it wrote a SavedModel, the first of the run.
    """
    folder = directory / run_folders.MODEL
    folder.mkdir(exist_ok=True)
    _write_weights(folder / f"round_{round_num}.npz", weights)
    for number, path in run_folders.model_rounds(directory).items():
        if number not in {*kept, round_num}:
            files.remove(path)
    is_first = not (folder / _SAVED_MODEL).exists()
    if is_first:
        _write_encoding(folder, encoding)
        _write_saved_model(folder, model, weights)
    return is_first


def write_latest(
    directory: pathlib.Path,
    model: tff.learning.models.FunctionalModel,
    weights: tff.learning.models.ModelWeights,
) -> None:
    """Writes the SavedModel of a stopped run anew: `write_round` wrote an earlier one.

    Args:
      directory: The results folder, which has a SavedModel.
      model: The model.
      weights: Its latest weights.
    """
    _write_saved_model(directory / run_folders.MODEL, model, weights)


def has_round(directory: pathlib.Path, round_num: int) -> bool:
    """Returns whether a results folder has what `write_round` writes."""
    written = directory / run_folders.MODEL / _SAVED_MODEL
    return round_num in run_folders.model_rounds(directory) and written.exists()


def write_final(
    directory: pathlib.Path,
    model: tff.learning.models.FunctionalModel,
    weights: tff.learning.models.ModelWeights,
    encoding: Mapping[str, Any] | None = None,
) -> None:
    """Writes the final weights, the SavedModel with them, and what inputs and outputs are.

    Args:
      directory: The results folder.
      model: The model.
      weights: Its weights.
      encoding: `tasks.Task.encoding`.
    """
    folder = directory / run_folders.MODEL
    folder.mkdir(exist_ok=True)
    _write_encoding(folder, encoding)
    _write_weights(folder / run_folders.WEIGHTS, weights)
    _write_saved_model(folder, model, weights)


def remove_final(directory: pathlib.Path) -> None:
    """Removes the final weights, which are no longer those after the last round."""
    files.remove(directory / run_folders.MODEL / run_folders.WEIGHTS)


def _write_encoding(folder: pathlib.Path, encoding: Mapping[str, Any] | None) -> None:
    if encoding is not None:
        files.write_json(folder / _ENCODING, encoding)


def _write_weights(
    path: pathlib.Path, weights: tff.learning.models.ModelWeights
) -> None:
    arrays = {
        f"{kind}_{index}": np.asarray(value)
        for kind, values in zip(
            ("trainable", "non_trainable"), _flat(weights), strict=True
        )
        for index, value in enumerate(values)
    }
    with files.replacing_bytes(path) as file:
        np.savez(file, **arrays)


def _write_saved_model(
    folder: pathlib.Path,
    model: tff.learning.models.FunctionalModel,
    weights: tff.learning.models.ModelWeights,
) -> None:
    exported = _Exported(model, weights)
    temporary = files.temporary_path(folder / _SAVED_MODEL)
    try:
        with files.without_log():
            tf.saved_model.save(exported, str(temporary), signatures=exported.serve)
        earlier = files.temporary_path(folder / _SAVED_MODEL)
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / _SAVED_MODEL, earlier)
        os.replace(temporary, folder / _SAVED_MODEL)
        shutil.rmtree(earlier, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@attrs.frozen(kw_only=True, eq=False)
class TrainedModel:
    """The model of a run.

    Attributes:
      folder: The results folder.
      round_num: After which round; None for the last one of a finished run.
      weights: The weights, as TFF has them; lists in the order of the model's.
      config: What `config.json` holds: hyperparameters, data source, versions.
      encoding: Of own data, what the model's inputs and outputs are: `classes`, in the
        order of the outputs, and `mean` and `deviation`: its inputs are features less
        their mean, divided by their deviation. Of a table also `features`: columns and,
        of words, "column=word". None for other datasets.
    """

    folder: pathlib.Path
    round_num: int | None
    weights: tff.learning.models.ModelWeights = attrs.field(repr=False)
    config: Mapping[str, Any] = attrs.field(repr=False)
    encoding: Mapping[str, Any] | None = attrs.field(default=None, repr=False)

    @functools.cached_property
    def _saved(self) -> Any:
        return tf.saved_model.load(str(self.folder / run_folders.MODEL / _SAVED_MODEL))

    @property
    def _input_spec(self) -> tf.TensorSpec:
        (_, by_name) = self._saved.signatures[_SERVING].structured_input_signature
        return by_name["x"]

    def predict(self, x: Any) -> np.ndarray:
        """Returns the model's outputs on a batch of inputs, such as logits.

        Args:
          x: `[n, ...]`, an array or lists of the model's input type, encoded as the task
            does it; float64 is rounded.

        Returns:
          float32: of classifiers logits `[n, classes]`, of text `[n, length, classes]`.

        Raises:
          InputError: If the batch is of another shape or type.
        """
        batch, spec = np.asarray(x), self._input_spec
        expected = spec.dtype.as_numpy_dtype
        # Rounds float64, but does not take unscaled bytes for scaled numbers.
        if batch.dtype.kind == np.dtype(expected).kind:
            batch = batch.astype(expected, copy=False)
        if batch.dtype != expected or not spec.shape.is_compatible_with(batch.shape):
            raise InputError(batch, spec)
        found = self._saved.predict(
            list(self.weights.trainable), list(self.weights.non_trainable), batch
        )
        return tf.nest.map_structure(lambda output: output.numpy(), found)

    def keras_model(self) -> tf_keras.Model:
        """Returns it as an uncompiled Keras model, to predict, train on and save.

        Its `save` writes a SavedModel, which predicts. That can also be trained, unless
        layers define gradients of their own, as our LSTM, GRU and group normalization
        do.
        """
        functional = _Functional(self._saved, self.weights, self._input_spec)
        return build_keras_model(functional, self.weights, custom_gradients=False)


class _Functional:
    """What `build_keras_model` needs of a functional model, from a SavedModel."""

    def __init__(
        self,
        saved: Any,
        weights: tff.learning.models.ModelWeights,
        x_spec: tf.TensorSpec,
    ) -> None:
        self._saved = saved
        self.input_spec = (x_spec,)
        self.initial_weights = (list(weights.trainable), list(weights.non_trainable))

    def predict_on_batch(self, weights: Any, x: Any, training: bool) -> Any:
        function = self._saved.predict_in_training if training else self._saved.predict
        return function(list(weights[0]), list(weights[1]), x)


def initial_weights(
    trained: TrainedModel,
    model: tff.learning.models.FunctionalModel,
    encoding: Mapping[str, Any] | None = None,
) -> tff.learning.models.ModelWeights:
    """Returns a run's weights as those of a model.

    Args:
      trained: The run's model.
      model: The model that is to start from them.
      encoding: Of own data, what the model's inputs and outputs are, as in
        `TrainedModel`.

    Raises:
      ModelFileError: If they have other weights, classes or features.
    """
    found = tf.nest.flatten(trained.weights)
    expected = tf.nest.flatten(model.initial_weights)
    theirs, own = (
        [(w.dtype.name, *w.shape) for w in map(np.asarray, weights)]
        for weights in (found, expected)
    )
    if theirs != own:
        raise ModelFileError(
            f"{trained.folder} holds another model: {_described(found)}, not "
            f"{_described(expected)}."
        )
    for name in ("classes", "features"):
        old, new = ((each or {}).get(name) for each in (trained.encoding, encoding))
        if old and new and list(old) != list(new):
            pairs = itertools.zip_longest(old, new, fillvalue="nothing")
            was, now = next(pair for pair in pairs if pair[0] != pair[1])
            raise ModelFileError(
                f"{trained.folder} has other {name}: {messages.shortened(str(was))} where "
                f"these data have {messages.shortened(str(now))}."
            )
    packed = tf.nest.pack_sequence_as(model.initial_weights, found)
    return tff.learning.models.ModelWeights(*packed)


def _described(weights: Iterable[Any]) -> str:
    arrays = list(map(np.asarray, weights))
    count = sum(array.size for array in arrays)
    return f"{len(arrays)} arrays of {count:,} numbers"


def _json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        if not is_zipfile(file):
            raise ValueError("it is no NumPy archive")
        file.seek(0)
        with np.load(file) as archive:
            return dict(archive)


def _read(path: pathlib.Path, read: Callable[[pathlib.Path], Any]) -> Any:
    """Returns what a file holds; raises `ModelFileError` if it cannot be read."""
    try:
        return read(path)
    except (OSError, ValueError, BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        text = reason or messages.one_line(error)
        raise ModelFileError(f"{path} cannot be read: {text}.") from error


def load_model(
    run_dir: str | os.PathLike[str], round_num: int | None = None
) -> TrainedModel:
    """Returns the model of a run, of this or another process.

    Args:
      run_dir: The results folder.
      round_num: After which round; one that has a checkpoint. By default after the last
        round, or after the last checkpoint of a run that was stopped.

    Raises:
      ModelFileError: If the folder has no such model, or it cannot be read.
    """
    path, round_num = run_folders.find_weights(run_dir, round_num)
    folder = path.parents[1]
    config = _read(folder / files.CONFIG_FILE, _json)
    of_data = folder / run_folders.MODEL / _ENCODING
    encoding = _read(of_data, _json) if of_data.exists() else None
    arrays = _read(path, _arrays)

    def of(kind: str) -> list[np.ndarray]:
        count = sum(name.startswith(f"{kind}_") for name in arrays)
        return [arrays[f"{kind}_{index}"] for index in range(count)]

    return TrainedModel(
        folder=folder,
        round_num=round_num,
        weights=tff.learning.models.ModelWeights(of("trainable"), of("non_trainable")),
        config=config,
        encoding=encoding,
    )
