"""Federated Shakespeare: predicts the next character of a role's lines.

McMahan et al., "Communication-efficient learning of deep networks from
decentralized data" (https://arxiv.org/abs/1602.05629); 715 roles. Snippets become
sequences as in `tff.simulation.baselines.shakespeare`.
"""

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

import numpy as np
import tensorflow_federated as tff

from tasks import client_examples, download, generated_text
from tasks.models import text
from tasks.task import DataOptions, Split, Task, TaskEntry
from tff_algos.clients.batching import Examples
from tff_algos.hyperparameters import hparam, record

FILE_NAME = "shakespeare.sqlite"
SEQUENCE_LENGTH = 80

# The characters in the order of their ids in TFF's baseline: its published numbers and
# saved models are valid for this order only.
CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\n"
    "aeimquyAEIMQUY]!%)-159\r"
)
PADDING = 0
UNKNOWN = len(CHARACTERS) + 1
BEGIN = len(CHARACTERS) + 2
END = len(CHARACTERS) + 3
VOCABULARY_SIZE = len(CHARACTERS) + 4

# Jiang et al., 2019, arXiv 1909.12488, section 3.
_SHARE = (500, 715)

_SETTINGS = types.MappingProxyType(
    {"client_learning_rate": 1.0, "client_batch_size": 4}
)


_BUILD_MODEL = types.MappingProxyType(
    {"lstm": text.build_lstm_model, "gru": text.build_gru_model}
)


@record
class ShakespeareOptions(client_examples.Population):
    """The options of `--task=shakespeare`.

    Attributes:
      model: Architecture: two LSTM layers of 256 units, or a GRU layer of 1,024.
      predicted_characters: Predict every character of an 80-character sequence (every),
        or only the one after 80 others, an example for each character with 80 before
        it, as in LEAF (last).
      mix_roles: Pool the training examples of all roles that train, and divide them at
        random among as many clients of equal size.
    """

    model: Annotated[Literal["lstm", "gru"], hparam()] = "lstm"
    predicted_characters: Annotated[Literal["every", "last"], hparam()] = "every"
    mix_roles: Annotated[bool, hparam()] = False


def load(options: ShakespeareOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` and `y`, int32 [n, 80] each, where `y` is `x` one character
    later; ids in [0, 90), 0 is padding. Where only the last character is predicted, the
    others in `y` are padding, which neither loss nor metrics count.

    Args:
      options: Model and population.
      data_options: Real data or the stand-in, and the seed.

    Raises:
      TaskError: If the real data are unavailable or have too few clients for
        `options`.
    """
    source, notice = download.resolve_source(
        data_options.data, FILE_NAME, data_options.cache_dir
    )
    to_examples = _TO_EXAMPLES[options.predicted_characters]
    if source == "tff":
        client_ids, read = _real_clients(data_options.cache_dir, to_examples)
    else:
        client_ids, read = _generated_clients(to_examples)
    train_client_ids, eval_client_ids = options.choose_clients(
        client_ids, data_options.seed, _SHARE
    )
    if options.mix_roles:
        read = client_examples.dealt(read, train_client_ids, data_options.seed)
    return Task(
        name=ENTRY.name,
        data_source=source,
        train_client_ids=train_client_ids,
        eval_client_ids=eval_client_ids,
        examples=client_examples.cached(read),
        model=_BUILD_MODEL[options.model](
            vocab_size=VOCABULARY_SIZE,
            sequence_length=SEQUENCE_LENGTH,
            seed=data_options.seed,
        ),
        seed=data_options.seed,
        notice=notice,
    )


def tokenize(
    snippets: Iterable[bytes], sequence_length: int = SEQUENCE_LENGTH
) -> Examples:
    """Returns the sequences of a client's snippets.

    A snippet becomes a begin id, its characters and an end id, padded to a multiple of
    `sequence_length` + 1 and split into windows of that length. `x` is a window without
    its last id, `y` without its first.

    Args:
      snippets: Text; bytes that are not in `CHARACTERS` become `UNKNOWN`.
      sequence_length: Length of a sequence.

    Returns:
      `(x, y)`, int32 [n, sequence_length] each.
    """
    window = sequence_length + 1
    windows = _ids(snippets, window).reshape(-1, window)
    return windows[:, :-1].copy(), windows[:, 1:].copy()


def tokenize_by_character(
    snippets: Iterable[bytes], sequence_length: int = SEQUENCE_LENGTH
) -> Examples:
    """Returns an example for each character with `sequence_length` others before it.

    The snippets, with their begin and end ids, are one text. Caldas et al., "LEAF: A
    benchmark for federated settings" (https://arxiv.org/abs/1812.01097).

    Args:
      snippets: Text; bytes that are not in `CHARACTERS` become `UNKNOWN`.
      sequence_length: Length of a sequence.

    Returns:
      `(x, y)`, int32 [n, sequence_length] each; all of `y` but the last is `PADDING`. A
      text of fewer ids is padded on the left, to one example.
    """
    window = sequence_length + 1
    ids = _ids(snippets, 1)
    if 0 < len(ids) < window:
        ids = np.pad(ids, (window - len(ids), 0), constant_values=PADDING)
    if not len(ids):
        return tokenize((), sequence_length)
    x = np.lib.stride_tricks.sliding_window_view(ids, window)[:, :-1].copy()
    y = np.full_like(x, PADDING)
    y[:, -1] = ids[sequence_length:]
    return x, y


def _ids(snippets: Iterable[bytes], multiple: int) -> np.ndarray:
    """Returns snippets as ids between marks, each padded to a multiple of a length."""
    snippets = list(snippets)
    lengths = np.array([len(snippet) + 2 for snippet in snippets], np.int64)
    padded = -(-lengths // multiple) * multiple
    starts = np.cumsum(padded) - padded
    ids = np.full(padded.sum(), PADDING, np.int32)
    ids[starts] = BEGIN
    ids[starts + lengths - 1] = END
    characters = _ids_of_bytes()[np.frombuffer(b"".join(snippets), np.uint8)]
    # A character's position: its position in the joined text plus the padding and marks
    # of the snippets before it and its own begin mark.
    moved = starts + 1 - (np.cumsum(lengths - 2) - (lengths - 2))
    ids[np.arange(len(characters)) + np.repeat(moved, lengths - 2)] = characters
    return ids


_TO_EXAMPLES = types.MappingProxyType(
    {"every": tokenize, "last": tokenize_by_character}
)
_ToExamples = Callable[[Iterable[bytes]], Examples]


def _ids_of_bytes() -> np.ndarray:
    table = np.full(256, UNKNOWN, np.int32)
    table[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(
        1, len(CHARACTERS) + 1
    )
    return table


def _generated_clients(to_examples: _ToExamples):
    numbers = {name: i for i, name in enumerate(generated_text.client_ids())}

    def read(client_id: str, split: Split) -> Examples:
        return to_examples(generated_text.snippets(numbers[client_id], split))

    return tuple(numbers), read


def _real_clients(cache_dir: str | None, to_examples: _ToExamples):
    path = download.cached_path(FILE_NAME, cache_dir)
    with client_examples.naming_missing_clients(path, "train or test"):
        train, test = tff.simulation.datasets.shakespeare.load_data(
            cache_dir=download.cache_folder(cache_dir)
        )

    def convert(elements: Mapping[str, np.ndarray]) -> Examples:
        return to_examples(elements["snippets"])

    read = client_examples.tff_reader({"train": train, "test": test}, convert, path)
    return tuple(train.client_ids), read


ENTRY = TaskEntry(
    name="shakespeare",
    summary="Next character in the lines of Shakespeare's roles, 90 characters",
    options=ShakespeareOptions,
    load=load,
    settings=_SETTINGS,
)
