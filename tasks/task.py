"""How a task is asked for: its options, where its data come from, its entry."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from tff_algos.hyperparameters import choice
from tff_algos.simulation.task import Task


class TaskError(ValueError):
    """A task cannot be made as asked; one line for the user."""


@attrs.frozen(kw_only=True)
class DataOptions:
    """Where a task's data come from; the same for every task.

    Attributes:
      data: "tff" for the real data set (downloaded when it is not cached),
        "generated" for the stand-in, "auto" for the real one if it is cached,
        else the stand-in.
      cache_dir: Folder of the real data sets, TFF's, tensorflow-datasets' or a user's
        own; None for TFF's own, `~/.tff`.
      seed: Decides the model's initial weights, which clients a task draws and how
        arrays are divided among clients; generated data do not depend on it.
    """

    data: Literal["auto", "tff", "generated"] = choice(
        default="auto",
        choices=("auto", "tff", "generated"),
        help="Real data set, generated stand-in, or whichever is at hand.",
    )
    cache_dir: str | None = None
    seed: int = 0


@attrs.frozen(kw_only=True)
class TaskEntry:
    """One `--task` name.

    Attributes:
      name: The `--task` name.
      summary: One line for lists and help.
      options: Frozen attrs class of the task's own options, all with defaults;
        every field's metadata hold "help" and, where the values are few,
        "choices".
      load: `(options, data_options) -> Task`.
      settings: The task's own defaults of hyperparameters by flag name (for
        example `client_learning_rate`), from the papers.
    """

    name: str
    summary: str
    options: type
    load: Callable[[Any, DataOptions], Task]
    settings: Mapping[str, Any]
