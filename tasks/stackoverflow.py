"""Federated Stack Overflow: predicts the next word of a user's posts.

The dataset of Reddi et al., "Adaptive federated optimization", ICLR 2021
(https://arxiv.org/abs/2003.00295): sentences of questions and answers, of 342,477
users who train and 38,758 others. Sentences become sequences of 20 words out of the
10,000 most frequent ones as in `tff.simulation.baselines.stackoverflow`.
"""

import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal

import attrs
import numpy as np
import tensorflow_federated as tff

from tasks import client_examples, download, generated_words
from tasks.array_source import Source
from tasks.models import text
from tasks.task import DataOptions, Pace, Split, Task, TaskEntry, TaskError
from tff_algos.clients.batching import Examples, derive_seed
from tff_algos.hyperparameters import hparam, record

FILE_NAME = "stackoverflow.sqlite"
WORD_COUNTS_NAME = "stackoverflow.word_count"
SEQUENCE_LENGTH = 20
PADDING = 0
NUM_SPECIAL_IDS = 4

# The number of the stand-in's users that train; the others are held out.
_NUM_GENERATED_TRAIN = 100

# Suitable for a laptop; the paper uses 50 clients per round.
_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 16,
        "client_epochs_per_round": 1,
        "client_learning_rate": 1.0,
        "clients_per_round": 10,
        "max_elements_per_client": 128,
    }
)

_Read = Callable[[str, Split], Examples]


@record
class StackoverflowOptions(client_examples.Population):
    """The options of `--task=stackoverflow`.

    Attributes:
      num_clients: Number of training clients, drawn with --seed, and of evaluated
        clients. Unset: TFF's training clients train, its held-out clients are
        evaluated.
      model: Architecture: an LSTM layer of 670 units between an embedding and a linear
        layer of 96.
      vocab_size: Size of the vocabulary of the most frequent words; smaller values make
        the model smaller.
    """

    num_clients: Annotated[int | None, hparam(low=1)] = None
    model: Annotated[Literal["lstm"], hparam()] = "lstm"
    vocab_size: Annotated[int, hparam(low=1)] = 10_000


@attrs.frozen(kw_only=True)
class Vocabulary:
    """The ids of words: 0 is padding, words from 1, then the special ids.

    Attributes:
      ids: The ids by word.
    """

    ids: Mapping[bytes, int]

    @classmethod
    def of(cls, words: Sequence[bytes]) -> "Vocabulary":
        """Assigns ids to the distinct `words`, in order."""
        return cls(ids={word: number for number, word in enumerate(words, start=1)})

    @property
    def unknown(self) -> int:
        """The id of all other words."""
        return len(self.ids) + 1

    @property
    def begin(self) -> int:
        """The id that every sentence begins with."""
        return len(self.ids) + 2

    @property
    def end(self) -> int:
        """The id that ends a sentence of fewer than 20 words."""
        return len(self.ids) + 3

    @property
    def size(self) -> int:
        """Ids are in [0, size)."""
        return len(self.ids) + NUM_SPECIAL_IDS


@attrs.frozen(kw_only=True, eq=False)
class _Clients:
    """The clients of a source.

    Attributes:
      train: Clients that train.
      held_out: Clients that do not train.
      read: Returns the examples of any client.
    """

    train: Sequence[str]
    held_out: Sequence[str]
    read: _Read


def load(options: StackoverflowOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` and `y`, int32 [n, 20] each, where `y` is `x` one word later; ids
    in [0, vocab_size + 4). Out-of-vocabulary words and the ends of sentences count
    in the loss, not in the accuracy.

    TFF's training users are tested on their sentences from 2018 on, which not all of
    them have. For held-out users, the last fifth of their sentences is for tests, the
    rest for personalization.

    Args:
      options: Vocabulary and population.
      data_options: Real data or the stand-in, and the seed.

    Raises:
      TaskError: If the real data are unavailable or have too few words or clients for
        `options`.
    """
    source, notice = _resolve_source(data_options)
    if source == "tff":
        path = _word_counts_path(data_options.cache_dir)
        vocabulary = Vocabulary.of(read_words(path, options.vocab_size))
        clients = _real_clients(vocabulary, data_options.cache_dir)
    else:
        vocabulary = Vocabulary.of(_generated_words(options.vocab_size))
        clients = _generated_clients(vocabulary)
    train_client_ids, eval_client_ids = choose_clients(
        options, clients.train, clients.held_out, data_options.seed
    )
    return Task(
        name=ENTRY.name,
        data_source=source,
        train_client_ids=train_client_ids,
        eval_client_ids=eval_client_ids,
        examples=client_examples.cached(clients.read),
        model=text.build_word_model(
            vocabulary.size,
            SEQUENCE_LENGTH,
            data_options.seed,
            unscored_ids=(vocabulary.unknown, vocabulary.begin, vocabulary.end),
        ),
        seed=data_options.seed,
        notice=notice,
    )


def choose_clients(
    population: client_examples.Population,
    train_ids: Sequence[str],
    held_out_ids: Sequence[str],
    seed: int,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the clients that train and those that evaluate.

    Args:
      population: Number of clients to draw; if unset, all clients take part.
      train_ids: The candidates for training.
      held_out_ids: The other clients.
      seed: Seed of the draw.

    Raises:
      TaskError: If there are too few clients.
    """
    size = population.num_clients
    if size is None:
        return tuple(train_ids), tuple(held_out_ids)
    overlap = 1.0 if population.eval_overlap is None else population.eval_overlap
    num_shared = round(overlap * size)
    if size > len(train_ids):
        raise TaskError(
            f"--num_clients={size}: there are {len(train_ids)} clients that train."
        )
    if size - num_shared > len(held_out_ids):
        raise TaskError(
            f"--num_clients={size} with --eval_overlap={overlap} takes "
            f"{size - num_shared} clients that do not train: there are "
            f"{len(held_out_ids)}."
        )

    def drawn(ids: Sequence[str], count: int, purpose: str) -> tuple[str, ...]:
        generator = np.random.default_rng(derive_seed(seed, purpose))
        chosen = generator.choice(len(ids), count, replace=False)
        return tuple(ids[index] for index in sorted(chosen))

    train = drawn(train_ids, size, "population")
    shared = drawn(train, num_shared, "evaluated population")
    others = drawn(held_out_ids, size - num_shared, "held-out population")
    return train, (*shared, *others)


def tokenize(sentences: Iterable[bytes], vocabulary: Vocabulary) -> Examples:
    """Returns one sequence for each of a client's sentences.

    A sentence becomes a begin id, its first 20 words and, if it has fewer, an end id
    and padding. `x` is this sequence without its last id, `y` without its first.

    Args:
      sentences: Words, separated by single spaces.
      vocabulary: The words' ids.

    Returns:
      `(x, y)`, int32 [n, 20] each.
    """
    sentences = list(sentences)
    windows = np.full([len(sentences), SEQUENCE_LENGTH + 1], PADDING, np.int32)
    windows[:, 0] = vocabulary.begin
    ids, unknown = vocabulary.ids, vocabulary.unknown
    for window, sentence in zip(windows, sentences, strict=True):
        words = sentence.split(b" ")[:SEQUENCE_LENGTH]
        window[1 : 1 + len(words)] = [ids.get(word, unknown) for word in words]
        if len(words) < SEQUENCE_LENGTH:
            window[1 + len(words)] = vocabulary.end
    return windows[:, :-1].copy(), windows[:, 1:].copy()


def read_words(path: str, count: int) -> list[bytes]:
    """Reads the most frequent words of a file of TFF's word counts.

    Args:
      path: A file of lines "word count", the most frequent word first.
      count: Number of words.

    Raises:
      TaskError: If the file cannot be read, has another format or too few words.
    """
    words: dict[bytes, None] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                word, number = line.split()
                int(number)
                words[word] = None
                if len(words) == count:
                    return list(words)
    # A line is not a word and its count.
    except ValueError:
        raise TaskError(
            f"{path} has a line that is not a word with its count: {line[:60]!r}; replace "
            "it, remove it for --data=tff to download it anew, or use --data=generated."
        ) from None
    except OSError as error:
        raise TaskError(
            f"{path} cannot be read ({error.strerror}): make it readable, name another "
            "folder with --cache_dir, or use --data=generated."
        ) from error
    raise TaskError(f"--vocab_size={count}: {path} has {len(words)} words.")


def _generated_words(count: int) -> list[bytes]:
    words = generated_words.vocabulary()
    if count > len(words):
        raise TaskError(
            f"--vocab_size={count}: the generated data have {len(words)} words."
        )
    return [word.encode() for word in words[:count]]


def _generated_clients(vocabulary: Vocabulary) -> _Clients:
    client_ids = generated_words.client_ids()
    numbers = {client_id: number for number, client_id in enumerate(client_ids)}

    def read(client_id: str, split: Split) -> Examples:
        sentences = generated_words.sentences(numbers[client_id], split)
        return tokenize(sentences, vocabulary)

    return _Clients(
        train=client_ids[:_NUM_GENERATED_TRAIN],
        held_out=client_ids[_NUM_GENERATED_TRAIN:],
        read=read,
    )


def _resolve_source(data_options: DataOptions) -> tuple[Source, str | None]:
    """Returns the source and a line that the user must see, or None."""
    data, cache_dir = data_options.data, data_options.cache_dir
    if data == "tff" and _word_counts_path(cache_dir) is None:
        _download_word_counts(download.cache_folder(cache_dir))
    source, notice = download.resolve_source(data, FILE_NAME, cache_dir)
    if source == "tff" and _word_counts_path(cache_dir) is None:
        path = download.cached_path(WORD_COUNTS_NAME, cache_dir)
        if data == "tff":
            raise TaskError(
                f"--data=tff cannot write {path}: put {WORD_COUNTS_NAME} there, choose "
                "another --cache_dir, or use --data=generated, which needs no download."
            )
        return "generated", (
            f"--data=auto found no {path}, so generated data are used, not the "
            "real dataset; --data=tff downloads it."
        )
    return source, notice


def _word_counts_path(cache_dir: str | None) -> str | None:
    """Returns the path of the word counts, in the folder or where TFF puts them."""
    paths = (
        download.cached_path(os.path.join(*parts, WORD_COUNTS_NAME), cache_dir)
        for parts in ((), ("datasets",))
    )
    return next(filter(os.path.exists, paths), None)


def _download_word_counts(folder: str) -> None:
    """Makes TFF download the file, verify its digest, and unpack it."""
    try:
        os.makedirs(folder, exist_ok=True)
        tff.simulation.datasets.stackoverflow.load_word_counts(cache_dir=folder)
    # A download, its unpacking or the disk may raise any exception.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TaskError(
            f"cannot download {WORD_COUNTS_NAME} to {folder} ({reason}): try again, put "
            "it there, or use --data=generated, which needs no download."
        ) from error


def _real_clients(vocabulary: Vocabulary, cache_dir: str | None) -> _Clients:
    folder = download.cache_folder(cache_dir)
    path = download.cached_path(FILE_NAME, cache_dir)
    with client_examples.naming_missing_clients(path, "train, heldout or test"):
        train, held_out, test = tff.simulation.datasets.stackoverflow.load_data(folder)

    def convert(elements: Mapping[str, np.ndarray]) -> Examples:
        return tokenize(elements["tokens"], vocabulary)

    def convert_by_date(elements: Mapping[str, np.ndarray]) -> Examples:
        order = np.argsort(elements["creation_date"], kind="stable")
        return tokenize(elements["tokens"][order], vocabulary)

    held_out_ids = frozenset(held_out.client_ids)
    read_training = client_examples.tff_reader(
        {"train": train, "test": test}, convert, path
    )
    read_held_out = client_examples.tff_reader(
        {"train": held_out}, convert_by_date, path
    )

    def read(client_id: str, split: Split) -> Examples:
        if client_id in held_out_ids:
            return _part(read_held_out(client_id, "train"), split)
        return read_training(client_id, split)

    return _Clients(train=train.client_ids, held_out=held_out.client_ids, read=read)


def _part(examples: Examples, split: Split) -> Examples:
    """Returns the last fifth (at least one example) for "test", else the rest."""
    num_test = max(1, round(len(examples[0]) / 5))
    chosen = slice(-num_test, None) if split == "test" else slice(-num_test)
    return tuple(array[chosen].copy() for array in examples)


ENTRY = TaskEntry(
    name="stackoverflow",
    summary="Next word in the posts of Stack Overflow's users, 10,000 words",
    options=StackoverflowOptions,
    load=load,
    settings=_SETTINGS,
    pace=Pace(
        rounds=300,
        text="the model learns little in few rounds here: 30 of the default settings "
        "reach 7 % to 8 %, about the share of the most frequent word; published runs take "
        "1,500 rounds of 50 clients (--total_rounds, --clients_per_round). "
        "--vocab_size=1000 makes a round about a third as long.",
    ),
)
