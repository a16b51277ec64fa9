"""Malicious clients of a simulation and their attacks."""

import csv
from collections.abc import Collection, Sequence

import attrs
import numpy as np
import tensorflow as tf

from tasks.task import Task
from tff_algos import clients, messages
from tff_algos.clients.batching import derive_seed
from tff_algos.hyperparameters import (
    Form,
    HyperparameterError,
    UnusableHyperparameterError,
)

# The corresponding arguments of `clients.attacked_batches`.
_ARGUMENTS = {
    "bias": "loss_bias",
    "scale": "loss_scale",
    "scale_update": "update_scale",
}
# Of so many clients, the malicious ones are named.
_MAX_NAMED = 10
_KINDS = (
    "bias:VALUE (added to reported losses), scale:VALUE (times every loss) or "
    "scale_update:VALUE (times the update, after honest training)"
)
FORM = Form(f"({'|'.join(_ARGUMENTS)}):[0-9.eE+-]+", _KINDS)


@attrs.frozen
class Attack:
    """The attack of malicious clients.

    Attributes:
      kind: "bias", "scale" or "scale_update".
      value: Bias added to reported losses, or factor on the loss or the update.
      client_ids: The malicious clients.
      every_round: Whether they take part in every round.
    """

    kind: str
    value: float
    client_ids: frozenset[str]
    every_round: bool = True

    def describe(self, client_ids: Sequence[str]) -> str:
        """Returns what is done by how many of the clients, or by whom of a few."""
        names = sorted(self.client_ids)
        who = f"{len(names)} of {len(client_ids)} clients"
        if len(client_ids) <= _MAX_NAMED:
            who = ", ".join(map(messages.shortened, names))
        now_and_then = "" if self.every_round else ", in rounds that sample them"
        return f"attack {self.kind}:{self.value:g} by {who}{now_and_then}"

    def task(self, task: Task) -> Task:
        """Returns the task with the model for attacked batches."""
        return attrs.evolve(task, model=clients.attacked_model(task.model))

    def check_applied(self, applied: Collection[str]) -> None:
        """Raises `HyperparameterError` if clients' updates would be sent unchanged.

        A bias may be without effect: it says that the algorithm uses no reported losses.

        Args:
          applied: What the algorithm's client works apply, by
            `attacks.applied_by_client_works`.
        """
        if self.kind == "scale_update" and _ARGUMENTS[self.kind] not in applied:
            raise HyperparameterError(
                "attack",
                f"{self.kind}:{self.value:g}",
                "an algorithm whose client work calls clients.attacks.sent_update",
            )

    def cohort(self, sampled: Sequence[str]) -> list[str]:
        """Returns a cohort in which malicious clients replace the last honest ones."""
        if not self.every_round:
            return list(sampled)
        missing = sorted(self.client_ids - set(sampled))
        honest = [name for name in sampled if name not in self.client_ids]
        # A cohort of a random size may have fewer honest clients than are to leave.
        leaving = set(honest[max(0, len(honest) - len(missing)) :])
        return [name for name in sampled if name not in leaving] + missing

    def batches(
        self, client_id: str | None, batches: tf.data.Dataset
    ) -> tf.data.Dataset:
        """Returns batches of a client, or of the server for None.

        They have an attack if the client is malicious.
        """
        malicious = client_id in self.client_ids
        told = {_ARGUMENTS[self.kind]: self.value} if malicious else {}
        return clients.attacked_batches(batches, **told)


def parse(text: str) -> tuple[str, float]:
    """Returns the kind and the value of an `--attack`.

    Raises:
      HyperparameterError: If the kind is unknown or the value is not a finite number.
    """
    kind, _, number = str(text).partition(":")
    try:
        value = float(number)
    except ValueError:
        value = np.nan
    if kind not in _ARGUMENTS or not np.isfinite(value):
        raise HyperparameterError("attack", text, _KINDS)
    return kind, value


def _names(text: str) -> list[str]:
    return next(csv.reader([text], skipinitialspace=True), [])


def choose_clients(
    text: str | Sequence[str] | None, client_ids: Sequence[str], seed: int
) -> list[str]:
    """Returns the malicious clients specified by `--malicious_clients`.

    Args:
      text: Ids (a list, or separated by commas), a share, or None for one client.
      client_ids: All training clients.
      seed: Seed for drawing clients that are not named.

    Raises:
      HyperparameterError: If there is no such client, or the share is out of range.
    """
    listed = _names(text) if isinstance(text, str) else text or []
    named = list(dict.fromkeys(listed))
    if named and set(named) <= set(client_ids):
        return named
    count = 1 if text is None else _count(text, client_ids)
    generator = np.random.default_rng(derive_seed(seed, "malicious"))
    chosen = generator.choice(len(client_ids), count, replace=False)
    return [client_ids[index] for index in sorted(chosen)]


def _count(text: str, client_ids: Sequence[str]) -> int:
    try:
        share = float(text)
    except (TypeError, ValueError):
        share = np.nan
    if not 0 < share <= 1:
        raise HyperparameterError(
            "malicious_clients",
            text,
            f"a share in (0, 1] or ids out of {_brief(client_ids)}",
        )
    return max(1, round(share * len(client_ids)))


def _brief(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    more = len(names) - 5
    return f"{listed} and {more} more" if more > 0 else listed


def check_used(
    attack: str | None,
    malicious_clients: str | Sequence[str] | None,
    every_round: bool,
) -> None:
    """Raises `HyperparameterError` if a flag of an attack is set without `--attack`."""
    if attack is not None:
        return
    if malicious_clients is not None:
        raise UnusableHyperparameterError(
            "malicious_clients", malicious_clients, "without --attack"
        )
    if not every_round:
        raise UnusableHyperparameterError(
            "malicious_every_round", every_round, "without --attack"
        )


def build(
    attack: str | None,
    malicious_clients: str | None,
    every_round: bool,
    task: Task,
    cohort_size: int | None,
    seed: int,
) -> Attack | None:
    """Returns the attack specified by flags, or None.

    Args:
      attack: The value of `--attack`.
      malicious_clients: The value of `--malicious_clients`.
      every_round: Whether malicious clients take part in every round.
      task: The clients.
      cohort_size: Clients per round; None for pooled examples.
      seed: Seed of the draw of malicious clients.

    Raises:
      HyperparameterError: If a flag is invalid, or given without an attack.
    """
    check_used(attack, malicious_clients, every_round)
    if attack is None:
        return None
    kind, value = parse(attack)
    if cohort_size is None:
        raise HyperparameterError(
            "attack", attack, "an algorithm that trains on clients, not on pooled data"
        )
    chosen = choose_clients(malicious_clients, task.train_client_ids, seed)
    # Otherwise no honest client would ever take part.
    most = cohort_size - (len(chosen) < len(task.train_client_ids))
    if every_round and len(chosen) > most:
        raise HyperparameterError(
            "malicious_clients",
            malicious_clients,
            f"at most {most} of clients_per_round={cohort_size} clients, found "
            f"{len(chosen)}, or --nomalicious_every_round",
        )
    return Attack(kind, value, frozenset(chosen), every_round)
