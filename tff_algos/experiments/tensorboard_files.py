"""What TensorBoard shows of a run beside the metrics of every round."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_api

FOLDER = "tensorboard"
_METRICS = ("eval/accuracy", "eval/loss", "train/accuracy", "train/loss")


def write_settings(
    directory: pathlib.Path,
    hyperparameters: Mapping[str, Any],
    command: Any,
    rounds_done: int = 0,
) -> None:
    """Writes the settings: for the tab HPARAMS, and as a table for the tab TEXT.

    Args:
      directory: The results folder.
      hyperparameters: All settings by flag name.
      command: The run's origin: the words of a command line, or a text.
      rounds_done: Rounds that earlier processes did; TensorBoard's step.
    """
    values = {name: _plain(value) for name, value in hyperparameters.items()}
    words = [command] if isinstance(command, str) else list(command or ())
    lines = [
        "| flag | value |",
        "|---|---|",
        *(f"| `{name}` | {value} |" for name, value in values.items()),
    ]
    with _writer(directory).as_default(step=rounds_done):
        hparams_api.hparams_config(
            hparams=[hparams_api.HParam(name) for name in values],
            metrics=[hparams_api.Metric(name) for name in _METRICS],
        )
        # The same id for a run that goes on: a row of its own for every folder.
        hparams_api.hparams(values, trial_id=str(directory))
        tf.summary.text("flags", "\n".join(lines))
        tf.summary.text("command", f"`{' '.join(words)}`")


def _plain(value: Any) -> bool | int | float | str:
    """Returns a value of a type that the HPARAMS tab has."""
    if isinstance(value, bool | int | float):
        return value
    return "" if value is None else str(value)


def write_plots(
    directory: pathlib.Path, paths: Sequence[pathlib.Path], round_num: int
) -> None:
    """Writes plots for the tab IMAGES.

    Args:
      directory: The results folder.
      paths: PNG files; their names are the images' tags.
      round_num: The last round.
    """
    with _writer(directory).as_default(step=round_num):
        for path in paths:
            image = tf.io.decode_png(path.read_bytes(), channels=3)
            tf.summary.image(f"plots/{path.stem}", image[tf.newaxis])


def _writer(directory: pathlib.Path) -> tf.summary.SummaryWriter:
    return tf.summary.create_file_writer(str(directory / FOLDER))
