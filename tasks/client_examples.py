"""Selects a dataset's clients; reads and caches their examples."""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.damage import Unfit
from tasks.task import Split, TaskError
from tff_algos import messages
from tff_algos.clients.batching import Examples, derive_seed
from tff_algos.hyperparameters import hparam, record

CACHE_BYTES = 1 << 30

# How many clients of how many train; the others are held out.
Share = tuple[int, int]

# As with federated EMNIST's writers.
EMNIST_SHARE: Share = (2500, 3400)

# More examples than a client can hold, so that all are one batch.
_WHOLE_CLIENT = 1 << 30


@record
class Population:
    """Which of a dataset's clients take part; options shared by tasks.

    Attributes:
      num_clients: Number of training clients, drawn with --seed, and of evaluated
        clients. Unset: all of the dataset's clients; 2,500 of every 3,400 train (500 of
        Shakespeare's 715 roles), and the others are evaluated.
      eval_overlap: With --num_clients: the share of evaluated clients (rounded) that
        also train, 1 by default; the others are drawn from clients that do not train.
    """

    num_clients: Annotated[int | None, hparam(low=1)] = None
    eval_overlap: Annotated[float | None, hparam(low=0, high=1)] = None

    def __attrs_post_init__(self):
        if self.eval_overlap is not None and self.num_clients is None:
            raise TaskError(
                f"--eval_overlap={self.eval_overlap} needs --num_clients: without it "
                "no evaluated client trains."
            )

    def choose_clients(
        self, client_ids: Sequence[str], seed: int, share: Share = EMNIST_SHARE
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the clients that train and those that evaluate.

        Which clients train does not depend on `eval_overlap`.

        Args:
          client_ids: All clients; the result has the same order.
          seed: Seed of the draw, if `num_clients` is set.
          share: How many clients of how many train if `num_clients` is not set.

        Raises:
          TaskError: If there are too few clients.
        """
        if self.num_clients is None:
            return split_clients(client_ids, share)
        overlap = 1.0 if self.eval_overlap is None else self.eval_overlap
        num_others = self.num_clients - round(overlap * self.num_clients)
        needed = self.num_clients + num_others
        if needed > len(client_ids):
            others = f" with --eval_overlap={overlap}" if num_others else ""
            raise TaskError(
                f"--num_clients={self.num_clients}{others} takes {needed} clients: "
                f"there are {len(client_ids)}."
            )
        generator = np.random.default_rng(derive_seed(seed, "population"))
        # In random order, so that any slice is a uniform draw.
        order = generator.permutation(len(client_ids))

        def chosen(start: int) -> tuple[str, ...]:
            part = sorted(order[start : start + self.num_clients])
            return tuple(client_ids[index] for index in part)

        return chosen(0), chosen(num_others)


def split_clients(
    client_ids: Sequence[str], share: Share = EMNIST_SHARE
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits clients into those that train and those held out.

    With the share `(a, b)` the first a of every b clients train (rounded; at least one
    client on either side), in the given order.

    Raises:
      TaskError: If there are fewer than two clients.
    """
    num_clients = len(client_ids)
    if num_clients < 2:
        raise TaskError(
            f"found {num_clients} clients: a task needs two or more, one to train "
            "and one to hold out; use a whole dataset file or --data=generated."
        )
    part, whole = share
    num_train = (2 * num_clients * part + whole) // (2 * whole)
    num_train = min(max(num_train, 1), num_clients - 1)
    return tuple(client_ids[:num_train]), tuple(client_ids[num_train:])


def cached(
    read: Callable[[str, Split], Examples], max_bytes: int = CACHE_BYTES
) -> Callable[[str, Split], Examples]:
    """Returns `read` with a cache of recently used clients.

    The arrays are shared between calls and read-only.

    Args:
      read: `(client_id, split) -> Examples`.
      max_bytes: Size of the cache; beyond it, least recently used clients are evicted.
    """
    memory: collections.OrderedDict[tuple[str, Split], Examples] = (
        collections.OrderedDict()
    )
    lock = threading.Lock()
    held = 0

    def examples(client_id: str, split: Split) -> Examples:
        nonlocal held
        key = (client_id, split)
        with lock:
            if key in memory:
                memory.move_to_end(key)
                return memory[key]
        found = read(client_id, split)
        for array in found:
            array.flags.writeable = False
        with lock:
            if key not in memory:
                memory[key] = found
                held += _num_bytes(found)
            while held > max_bytes and len(memory) > 1:
                _, forgotten = memory.popitem(last=False)
                held -= _num_bytes(forgotten)
        return found

    return examples


def dealt(
    read: Callable[[str, Split], Examples], client_ids: Sequence[str], seed: int
) -> Callable[[str, Split], Examples]:
    """Returns `read` with the training examples of some clients dealt out anew.

    Each of them gets an equal share, up to one example, of a random order of all.
    McMahan et al., 2017, arXiv 1602.05629, section 3, for the IID version of a dataset.

    Args:
      read: `(client_id, split) -> Examples`.
      client_ids: The clients; others keep their examples, and all their test examples.
      seed: Seed of the order.
    """
    places = {client_id: place for place, client_id in enumerate(client_ids)}

    @functools.cache
    def all_examples() -> tuple[Examples, Sequence[np.ndarray]]:
        columns = zip(*(read(each, "train") for each in client_ids), strict=True)
        pooled = tuple(map(np.concatenate, columns))
        generator = np.random.default_rng(derive_seed(seed, "dealing"))
        order = generator.permutation(len(pooled[0]))
        return pooled, np.array_split(order, len(places))

    lock = threading.Lock()

    def examples(client_id: str, split: Split) -> Examples:
        if split != "train" or client_id not in places:
            return read(client_id, split)
        with lock:  # Two threads would read all clients twice.
            pooled, shares = all_examples()
        share = shares[places[client_id]]
        return tuple(column[share] for column in pooled)

    return examples


def _num_bytes(examples: Examples) -> int:
    return sum(array.nbytes for array in examples)


@contextlib.contextmanager
def naming_missing_clients(path: str, splits: str) -> Iterator[None]:
    """Converts TFF's error for a file without clients to a `TaskError`.

    Args:
      path: The file.
      splits: The splits that are opened, for the message.

    Raises:
      TaskError: If a split has no clients; TFF reads the first client when opening it.
    """
    try:
        yield
    except StopIteration:
        raise TaskError(
            f"{path} lacks clients of the split {splits}; use a whole file, or "
            "--data=generated."
        ) from None


@contextlib.contextmanager
def _naming_client(path: str, client_id: str) -> Iterator[None]:
    """Converts errors in a client's records to a `TaskError`."""
    try:
        yield
    except (Unfit, UnicodeDecodeError, tf.errors.OpError) as error:
        reason = messages.one_line(error)
        if isinstance(error, UnicodeDecodeError):
            # Not TensorFlow's message, which quotes the record.
            reason = "a record cannot be parsed"
        raise TaskError(
            f"{path}: the examples of client {messages.shown(client_id)} cannot be read "
            f"({reason}): if the file is damaged, delete it, then --data=tff downloads "
            "it again; --data=generated needs no download."
        ) from error


def tff_reader(
    client_data: Mapping[Split, tff.simulation.datasets.ClientData],
    convert: Callable[[Mapping[str, np.ndarray]], Examples],
    path: str,
) -> Callable[[str, Split], Examples]:
    """Returns a function that reads one client's examples from `ClientData`.

    Args:
      client_data: The clients of each split; a client may be missing in a split, where
        it then has no examples.
      convert: Converts a client's elements (one array per key, with possibly zero
        examples along the first axis) to `Examples`; may raise `Unfit`.
      path: The file that the clients are read from, for the error message.

    Returns:
      `(client_id, split) -> Examples`. It raises `KeyError` for a client that is in no
      split, and `TaskError` for records that are damaged or not of this dataset.
    """
    clients = {split: frozenset(data.client_ids) for split, data in client_data.items()}
    everyone = frozenset().union(*clients.values())
    whole_client = {
        split: _whole_client_fn(data) for split, data in client_data.items()
    }

    def read(client_id: str, split: Split) -> Examples:
        if client_id not in everyone:
            raise KeyError(client_id)
        with _naming_client(path, client_id):
            if client_id in clients[split]:
                elements = whole_client[split](tf.constant(client_id))
            else:
                elements = _no_elements(client_data[split].element_type_structure)
            return convert({key: value.numpy() for key, value in elements.items()})

    return read


def _whole_client_fn(
    client_data: tff.simulation.datasets.ClientData,
) -> Callable[[tf.Tensor], Mapping[str, tf.Tensor]]:
    """Returns a function from a client id to its stacked elements.

    It is traced once: a new pipeline per client would be traced and optimized every
    time, and every trace would stay in memory.
    """

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def whole_client(client_id: tf.Tensor) -> Mapping[str, tf.Tensor]:
        dataset = client_data.serializable_dataset_fn(client_id)
        nothing = tf.data.Dataset.from_tensors(_no_elements(dataset.element_spec))
        # The second dataset is used if the client has no examples.
        whole = dataset.batch(_WHOLE_CLIENT).concatenate(nothing).take(1)
        return whole.get_single_element()

    # A concrete function: TensorFlow would warn that the functions of several tasks,
    # which have the same code, are traced often.
    traced = functools.cache(whole_client.get_concrete_function)
    return lambda client_id: traced()(client_id)


def _no_elements(structure: Mapping[str, tf.TensorSpec]) -> Mapping[str, tf.Tensor]:
    return type(structure)(
        (key, tf.zeros([0, *spec.shape], spec.dtype)) for key, spec in structure.items()
    )
