"""Divides one dataset among clients by rules that use only its labels.

`--partition=iid:N`, `shards:K[:N]` (McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017,
https://arxiv.org/abs/1602.05629) and `dirichlet:ALPHA[:N]` (after Hsu et al.,
"Measuring the effects of non-identical data distribution for federated visual
classification", https://arxiv.org/abs/1909.06335, with two examples for every
client beforehand, as in GradMA, CVPR 2023, https://arxiv.org/abs/2302.14307).
"""

import re
from collections.abc import Sequence
from typing import Annotated

import attrs
import numpy as np

from tasks.task import TaskError
from tff_algos.clients.batching import derive_seed
from tff_algos.hyperparameters import (
    MAX_INTEGER,
    Form,
    HyperparameterError,
    Interval,
    hparam,
)

DEFAULT_NUM_CLIENTS = 100
FORMS = "iid:N, shards:K[:N] or dirichlet:ALPHA[:N]"
_COUNT = "0*[1-9][0-9]*"
_NUMBER = "[0-9.eE+-]*[1-9][0-9.eE+-]*"
PATTERN = f"iid:{_COUNT}|shards:{_COUNT}(:{_COUNT})?|dirichlet:{_NUMBER}(:{_COUNT})?"
FORM = Form(PATTERN, f"{FORMS} (N, K integers >= 1, ALPHA > 0)")

# At this concentration, proportions are almost equal; far above it, draws underflow.
_MAX_CONCENTRATION = 1e6
_CONCENTRATIONS = Interval(low=0, high=_MAX_CONCENTRATION, low_open=True)

# The minimum number of examples of a client in a Dirichlet partition.
_FIRST_EXAMPLES = 2


@attrs.frozen(kw_only=True)
class Iid:
    """Equal shares of a random order; sizes differ by at most one.

    Attributes:
      num_clients: N, at least 1.
    """

    num_clients: int

    def __str__(self) -> str:
        return f"iid:{self.num_clients}"


@attrs.frozen(kw_only=True)
class Shards:
    """Shards of the examples sorted by label, the same number for every client.

    Attributes:
      shards_per_client: K, at least 1: a client has few more labels than that.
      num_clients: N, at least 1.
    """

    shards_per_client: int
    num_clients: int

    def __str__(self) -> str:
        return f"shards:{self.shards_per_client}:{self.num_clients}"


@attrs.frozen(kw_only=True)
class Dirichlet:
    """Every label divided by random proportions, after two examples for every client.

    Attributes:
      concentration: ALPHA, in (0, 1e6]: the smaller, the more uneven; at large values
        all clients have nearly the same number of examples of a label.
      num_clients: N, at least 1.
    """

    concentration: float
    num_clients: int

    def __str__(self) -> str:
        return f"dirichlet:{self.concentration:g}:{self.num_clients}"


PartitionSpec = Iid | Shards | Dirichlet


def parse(text: str) -> PartitionSpec:
    """Returns the rule that a `--partition` value names.

    Args:
      text: "iid:N", "shards:K", "shards:K:N", "dirichlet:ALPHA" or
        "dirichlet:ALPHA:N"; N is 100 if omitted.

    Raises:
      HyperparameterError: If the text has another form, or a number out of range.
    """
    kind, *numbers = text.split(":") if isinstance(text, str) else [None]
    match kind, numbers:
        case "iid", [clients]:
            return Iid(num_clients=_count(text, "N", clients))
        case "shards", [shards, *clients] if len(clients) <= 1:
            return Shards(
                shards_per_client=_count(text, "K", shards),
                num_clients=_num_clients(text, clients),
            )
        case "dirichlet", [concentration, *clients] if len(clients) <= 1:
            return Dirichlet(
                concentration=_concentration(text, concentration),
                num_clients=_num_clients(text, clients),
            )
    raise HyperparameterError("partition", text, FORMS)


def _num_clients(text: str, numbers: Sequence[str]) -> int:
    return _count(text, "N", numbers[0]) if numbers else DEFAULT_NUM_CLIENTS


def _count(text: str, symbol: str, number: str) -> int:
    # Ten digits are enough, and Python cannot parse integers of thousands of digits.
    digits = re.fullmatch(r"0*([1-9][0-9]{0,9})", number, re.ASCII)
    if digits is None or int(digits[1]) > MAX_INTEGER:
        expected = f"{FORMS} with {symbol} an integer >= 1 and at most {MAX_INTEGER}"
        raise HyperparameterError("partition", text, expected)
    return int(digits[1])


def _concentration(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if value not in _CONCENTRATIONS:
        expected = f"{FORMS} with ALPHA a number {_CONCENTRATIONS}"
        raise HyperparameterError("partition", text, expected)
    return value


# The type of a task's option `partition`, checked when it is set.
PartitionOption = Annotated[str, hparam(form=FORM, check=parse)]


def divide(
    labels: np.ndarray, spec: PartitionSpec, seed: int
) -> tuple[np.ndarray, ...]:
    """Divides examples among clients; each example is used once, no client is empty.

    Args:
      labels: int [n], the examples' labels.
      spec: The rule.
      seed: Seed of the division.

    Returns:
      The examples of each client, int64 [m] indices in ascending order, determined by
      the arguments.

    Raises:
      TaskError: If there are too few examples for the rule.
    """
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    _check_enough(len(labels), spec)
    match spec:
        case Iid():
            parts = np.array_split(rng.permutation(len(labels)), spec.num_clients)
        case Shards():
            parts = _divide_by_shards(labels, spec, rng)
        case Dirichlet():
            parts = _divide_by_proportions(labels, spec, rng)
    return tuple(np.sort(part) for part in parts)


def _check_enough(num_examples: int, spec: PartitionSpec) -> None:
    match spec:
        case Iid():
            needed, reason = spec.num_clients, "one for each client"
        case Shards():
            needed = spec.shards_per_client * spec.num_clients
            reason = "one for each shard"
        case Dirichlet():
            needed = _FIRST_EXAMPLES * spec.num_clients
            reason = f"{_FIRST_EXAMPLES} for each client"
    if needed > num_examples:
        raise TaskError(
            f"--partition={spec} needs {needed} training examples or more ({reason}), "
            f"the dataset has {num_examples}."
        )


def _divide_by_shards(
    labels: np.ndarray, spec: Shards, rng: np.random.Generator
) -> list[np.ndarray]:
    order = np.argsort(labels, kind="stable")
    shards = np.array_split(order, spec.shards_per_client * spec.num_clients)
    dealt = rng.permutation(len(shards)).reshape(spec.num_clients, -1)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def _divide_by_proportions(
    labels: np.ndarray, spec: Dirichlet, rng: np.random.Generator
) -> list[np.ndarray]:
    num_clients = spec.num_clients
    order = rng.permutation(len(labels))
    first, rest = np.split(order, [_FIRST_EXAMPLES * num_clients])
    parts = [[pair] for pair in first.reshape(num_clients, _FIRST_EXAMPLES)]
    for label in np.unique(labels[rest]):
        members = rest[labels[rest] == label]
        shares = rng.dirichlet(np.full(num_clients, spec.concentration))
        # Round to nearest: rounding down would give all remainders to the last client.
        ends = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, taken in zip(parts, np.split(members, ends), strict=True):
            part.append(taken)
    return [np.concatenate(part) for part in parts]


def hold_out(
    parts: Sequence[np.ndarray], fraction: float, seed: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Splits every client's examples into those it trains on and those held out.

    Args:
      parts: For each client int64 indices, the result of `divide`.
      fraction: Share of a client's examples that is held out (rounded; at least one
        example is left to train on), in [0, 1).
      seed: Seed of the draws.

    Returns:
      For each client the indices of its training and of its held-out examples, int64
      and ascending.
    """
    train, held_out = [], []
    for client, part in enumerate(parts):
        rng = np.random.default_rng(derive_seed(seed, "held out", client))
        size = min(round(fraction * len(part)), len(part) - 1)
        order = rng.permutation(part)
        held_out.append(np.sort(order[:size]))
        train.append(np.sort(order[size:]))
    return tuple(train), tuple(held_out)


def local_test(
    client_labels: np.ndarray, test_labels: np.ndarray, size: int, seed: int
) -> np.ndarray:
    """Draws a client's own test set, with labels in the client's proportions.

    Args:
      client_labels: int [m], labels of the client's training examples, m >= 1.
      test_labels: int [n], labels of the undivided test set; every label of the
        client is among them.
      size: How many to draw, at least 1; fewer are drawn if the test set has too few
        examples of a label.
      seed: Seed of the draw, different for each client.

    Returns:
      int64 indices into `test_labels`, ascending, each at most once. The number of
      a label differs by less than one from its proportion of `size`, unless the
      test set has fewer.
    """
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(client_labels, return_counts=True)
    drawn = []
    for label, quota in zip(classes, _apportion(counts, size), strict=True):
        members = np.flatnonzero(test_labels == label)
        drawn.append(rng.choice(members, min(int(quota), len(members)), replace=False))
    return np.sort(np.concatenate(drawn))


def _apportion(counts: np.ndarray, size: int) -> np.ndarray:
    """Returns int64 quotas in the proportions of `counts` that add up to `size`.

    The method of largest remainders; ties go to the first.
    """
    scaled = counts.astype(np.int64) * size
    quotas, remainders = np.divmod(scaled, counts.sum())
    missing = size - quotas.sum()
    quotas[np.argsort(-remainders, kind="stable")[:missing]] += 1
    return quotas


def local_tests(
    parts: Sequence[np.ndarray],
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, ...]:
    """Draws every client's own test set with `local_test`.

    Args:
      parts: The result of `divide`.
      train_labels: int [m], the labels that were divided.
      test_labels: int [n]; every label of `train_labels` is among them.
      seed: Seed of the draws.

    Returns:
      For each client int64 indices into `test_labels`, as many as the test set has
      per client (rounded, at least 1); clients may share examples.
    """
    size = max(1, round(len(test_labels) / len(parts)))
    return tuple(
        local_test(
            train_labels[part],
            test_labels,
            size,
            derive_seed(seed, "local test", client),
        )
        for client, part in enumerate(parts)
    )
