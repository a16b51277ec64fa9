"""The batches of MAML and FOMAML: K local steps and the query after them."""

from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments.declarations import Settings
from tff_algos.experiments.recipe import of
from tff_algos.experiments.settings import Cohort, one_epoch
from tff_algos.hyperparameters import HyperparameterError


def batches(settings: Settings) -> BatchSpec:
    """Returns the batches of the local steps and of the query.

    They are K + 1 for the next batch as query. Otherwise they are one pass, which the
    client work repeats, or, where batches straddle passes, the K alone.
    """
    steps = settings["client_steps_per_round"]
    if settings["query"] == "next_batch":
        steps += 1
    elif not _straddles(settings):
        return one_epoch(of(Cohort, settings))
    return BatchSpec(
        batch_size=settings["client_batch_size"],
        # A client that takes no step has a batch all the same, and leaves it.
        num_steps=max(steps, 1),
        max_elements=settings["max_elements_per_client"],
        step_batching=settings["step_batching"] or "straddling",
    )


def needs_full_pass(settings: Settings) -> bool:
    """Returns whether the query is not among the batches of the local steps."""
    return settings["query"] == "all" and _straddles(settings)


def check(settings: Settings) -> None:
    """Raises `HyperparameterError` for batches that do not go with the query."""
    batching = settings["step_batching"]
    if settings["query"] == "next_batch" and batching == "per_pass":
        raise HyperparameterError(
            "step_batching",
            batching,
            "straddling for --query=next_batch: a client's last batch of a pass may be "
            "smaller, and the query must be like the steps' batches",
        )
    if settings["query"] == "held_out" and batching == "straddling":
        raise HyperparameterError(
            "step_batching",
            batching,
            "per_pass for --query=held_out, which keeps every other batch of a pass",
        )


def _straddles(settings: Settings) -> bool:
    """Returns whether the batches of the local steps straddle passes."""
    held_out = settings["query"] == "held_out"
    return not held_out and settings["step_batching"] != "per_pass"
