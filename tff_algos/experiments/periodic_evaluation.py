"""What a run measures of its model between rounds and at its end."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_algos.experiments import evaluation
from tff_algos.experiments.evaluation import ClientResult
from tff_algos.experiments.metrics_log import flatten_metrics, without_empty_means
from tff_algos.experiments.progress import Progress
from tff_algos.experiments.run_spec import RunSpec

_Weights = tff.learning.models.ModelWeights


def is_due(round_num: int, every: int, total_rounds: int) -> bool:
    """Whether something happens after a round: every so often, and after the last."""
    return bool(every) and (round_num % every == 0 or round_num == total_rounds)


class PeriodicEvaluation:
    """The evaluations and personalizations of one run."""

    def __init__(
        self,
        spec: RunSpec,
        own_weights: Callable[[_Weights, str], _Weights] | None = None,
    ) -> None:
        """Initializes without evaluating.

        Args:
          spec: The run.
          own_weights: From the server's weights and a client's id to the weights that
            the client predicts with; None if clients keep no models.
        """
        self._spec = spec
        # The suffix of metric names, by group of clients.
        self._groups = {"": spec.eval_client_ids()}
        if seen := spec.seen_eval_client_ids():
            self._groups["_seen"] = seen
        self._evaluate: dict[str, Callable[[_Weights], dict[str, Any]]] = {}
        if spec.options.rounds_per_eval:
            self._evaluate = {
                # The undivided test set is not that of clients that trained.
                name: evaluation.build_evaluate_fn(spec.task, ids, undivided=not name)
                for name, ids in self._groups.items()
            }
        self._latest: tuple[int, list[ClientResult]] | None = None
        self._add_own = None
        if own_weights is not None:
            self._add_own = evaluation.build_own_models_fn(spec.task, own_weights)

    @property
    def client_ids(self) -> list[str]:
        """The clients that are evaluated, and personalize the model."""
        return list(itertools.chain(*self._groups.values()))

    @functools.cached_property
    def _personalize(self) -> evaluation.PersonalizeFn:
        options = self._spec.options
        return evaluation.build_personalize_fn(
            self._spec.task,
            self._spec.personalization_optimizer,
            num_epochs=options.personalization_epochs,
            batch_size=options.personalization_batch_size,
            seed=options.seed,
        )

    def metrics(self, round_num: int, weights: _Weights) -> dict[str, Any]:
        """Returns what the row of a round in `metrics.csv` holds of evaluations."""
        spec, row = self._spec, {}
        if is_due(round_num, spec.options.rounds_per_eval, spec.total_rounds):
            for name, evaluate in self._evaluate.items():
                row |= flatten_metrics(evaluate(weights), f"eval{name}/")
        every = spec.options.rounds_per_personalization
        if is_due(round_num, every, spec.total_rounds):
            results = []
            for name, ids in self._groups.items():
                groups = self._personalize(weights, ids)
                own = self._with_own_models(weights, itertools.chain(*groups))
                row |= _scalars(own, f"personalization{name}/")
                results += own
            self._latest = round_num, results
        return without_empty_means(row)

    def client_results(
        self, round_num: int, weights: _Weights, is_stopped: Callable[[], bool]
    ) -> list[ClientResult] | None:
        """Personalizes the model after the last round; returns None if it was stopped."""
        if self._latest is not None and self._latest[0] == round_num:
            return self._latest[1]
        ids = self.client_ids
        personalizes = self._spec.options.personalization_epochs > 0
        phase = "personalization" if personalizes else "evaluation"
        clients: list[ClientResult] = []
        with Progress(len(ids), unit="client") as progress:
            for group in self._personalize(weights, ids):
                clients += self._with_own_models(weights, group)
                progress.advance(phase, {}, steps=len(group))
                if is_stopped():
                    return None
        return clients

    def _with_own_models(
        self, weights: _Weights, results: Iterable[ClientResult]
    ) -> list[ClientResult]:
        if self._add_own is None:
            return list(results)
        return self._add_own(weights, list(results))


def _scalars(results: Sequence[ClientResult], prefix: str) -> dict[str, float]:
    """Returns the summary's means and deviations; by epoch, there are no columns."""
    summary = evaluation.personalization_summary(results)
    return {
        f"{prefix}{k}": float(v)
        for k, v in summary.items()
        if "accuracy" in k and "epoch" not in k
    }
