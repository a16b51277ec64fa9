"""Runs the stages of an algorithm on a task and writes a results folder.

Independent of the algorithm: it drives any `tff.learning` process, ours or TFF's.
"""

import contextlib
import functools
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import tensorflow_federated as tff

from tff_algos import execution, messages
from tff_algos.clients import client_memory
from tff_algos.experiments import (
    checkpoints,
    cohorts,
    evaluation,
    files,
    model_files,
    outlook,
    peak_memory,
    plots,
    results,
    results_folder,
    run_folders,
    tensorboard_files,
)
from tff_algos.experiments.errors import ResumeError
from tff_algos.experiments.metric_names import (
    BYTES_DOWN,
    BYTES_UP,
    EPSILON,
    ROUND,
    SECONDS,
    WORKERS_DOWN,
    WORKERS_UP,
)
from tff_algos.experiments.metrics_log import (
    MetricsLog,
    describe_missing,
    describe_repeated,
    flatten_metrics,
    read_rows,
    without_empty_means,
)
from tff_algos.experiments.periodic_evaluation import PeriodicEvaluation, is_due
from tff_algos.experiments.progress import Progress
from tff_algos.experiments.run_spec import RunResult, RunSpec
from tff_algos.experiments.stage import Stage
from tff_algos.experiments.stopping import StopOnSignal

# The keys of a configuration that describe the program, and the key of the descriptions
# of earlier programs, if a run was resumed.
_OF_PROGRAM = ("command", "git_commit", "runtime", "versions")
_EARLIER = "earlier_programs"


@contextlib.contextmanager
def _naming_damaged_memory() -> Iterator[None]:
    """Converts the error of an unreadable client memory to a `ResumeError`."""
    try:
        yield
    except client_memory.ClientMemoryError as error:
        raise ResumeError(str(error)) from error


def _stage_of_round(stages: Sequence[Stage], round_num: int) -> int:
    """Returns the index of the stage that round `round_num` (from 1) belongs to."""
    last = 0
    for index, stage in enumerate(stages):
        last += stage.num_rounds
        if round_num <= last:
            return index
    raise ValueError(f"round {round_num} is beyond the last, {last}.")


class _Training:
    """The rounds of a run."""

    def __init__(self, spec: RunSpec, stop: StopOnSignal) -> None:
        self._spec = spec
        own = self._own_weights if spec.keeps_models else None
        self.evaluations = PeriodicEvaluation(spec, own)
        self._stop = stop
        with results_folder.naming_errors(spec.output_dir):
            self._log = MetricsLog(spec.output_dir, required=(SECONDS,))
            self._checkpoints = checkpoints.Checkpoints(
                spec.output_dir / run_folders.CHECKPOINTS
            )
        self._memory = None
        self._saved_model_round: int | None = None
        self.rounds_done, self._stage_index, self._state = self._restore()
        self._check_rows()
        self._mend_model()
        self._saved = self.rounds_done
        self._worker_memory = 0
        self._rows_change = False
        self._cohorts = cohorts.CohortLoader(self._load_cohort, spec.total_rounds)
        self._improvement = evaluation.build_improvement_fn(spec.task)
        self._progress: Progress | None = None
        self._last_begun: int | None = None

    def close(self) -> None:
        """Stops background work."""
        self._cohorts.close()

    def _stage(self, round_num: int) -> Stage:
        stages = self._spec.stages
        return stages[_stage_of_round(stages, round_num)]

    def _load_cohort(self, round_num: int) -> list[cohorts.ClientData]:
        spec = self._spec
        return cohorts.cohort_datasets(
            self._stage(round_num),
            spec.task,
            spec.options.seed,
            round_num,
            spec.attack,
            spec.options.client_dropout,
        )

    def num_participations(self) -> int:
        """Returns the total number of clients over all rounds."""
        return sum(map(self._cohort_size, range(1, self.rounds_done + 1)))

    def _cohort_size(self, round_num: int) -> int:
        stage = self._stage(round_num)
        if stage.clients_per_round is None:
            return 1  # The client that holds the pooled examples.
        # Avoid resampling thousands of cohorts of a large population: it takes seconds.
        if self._spec.options.client_dropout or stage.sampling == "poisson":
            return len(self._cohort_ids(round_num))
        return stage.clients_per_round

    def _cohort_ids(self, round_num: int) -> list[str]:
        spec = self._spec
        return cohorts.cohort_ids(
            self._stage(round_num),
            spec.task,
            spec.options.seed,
            round_num,
            spec.attack,
            spec.options.client_dropout,
        )

    @property
    def peak_memory(self) -> dict[str, int]:
        """The peak memory so far in bytes, of Python and of the runtime."""
        own = peak_memory.peak_bytes()
        return {"python": own, "runtime_processes": self._worker_memory}

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model's current weights."""
        process = self._spec.stages[self._stage_index].process
        return process.get_model_weights(self._state)

    def _own_weights(
        self, weights: tff.learning.models.ModelWeights, client_id: str
    ) -> tff.learning.models.ModelWeights:
        """Returns what a client predicts with; a newcomer, with the server's model."""
        stage = self._spec.stages[self._stage_index]
        position = cohorts.positions(self._spec.task).get(client_id)
        if position is None or not stage.keeps_models:
            return weights
        with _naming_damaged_memory():
            row = self._memory.row(position)
        return stage.process.get_personal_weights(weights, row)

    def _restore(self):
        stages = self._spec.stages
        for rounds_done in reversed(self._checkpoints.rounds()):
            if rounds_done > self._spec.total_rounds:
                raise ResumeError(
                    f"{self._spec.output_dir} holds {rounds_done} rounds, more than "
                    f"--total_rounds={self._spec.total_rounds}."
                )
            index = _stage_of_round(stages, rounds_done)
            self._make_memory(index)
            return rounds_done, index, self._load(rounds_done, index)
        self._make_memory(0)
        state = stages[0].process.initialize()
        if self._spec.initial_weights is not None:
            weights = self._spec.initial_weights
            state = stages[0].process.set_model_weights(state, weights)
        return 0, 0, state

    def _check_rows(self) -> None:
        """Compares the existing rows with the rounds of the last checkpoint."""
        rows = self.rows()
        if rows and rows[-1][ROUND] > self._spec.total_rounds:
            raise ResumeError(
                f"{self._log.path} has a row of round {rows[-1][ROUND]}, beyond "
                f"--total_rounds={self._spec.total_rounds}: remove it."
            )
        for found in (
            describe_missing(rows, self.rounds_done, self._spec.total_rounds),
            describe_repeated(rows, self.rounds_done),
        ):
            if found is not None:
                print(f"warning: {self._log.path} {found}", file=sys.stderr, flush=True)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of `metrics.csv`."""
        with results_folder.naming_errors(self._spec.output_dir):
            return self._log.rows()

    def _make_memory(self, stage_index: int) -> None:
        """Creates the clients' memory of a stage, if its clients have memory."""
        spec, process = self._spec, self._spec.stages[stage_index].process
        self._memory = None
        if "memory" in spec.stages[stage_index].client_data_fields:
            with results_folder.naming_errors(spec.output_dir):
                self._memory = client_memory.ClientMemory.of_process(
                    process, len(spec.task.train_client_ids), spec.output_dir
                )

    def _load(self, rounds_done: int, stage_index: int) -> Any:
        """Returns a checkpoint's state and restores the clients' memory to it."""
        template = self._spec.stages[stage_index].process.initialize()
        memory_template = None if self._memory is None else self._memory.save()
        load = functools.partial(
            self._checkpoints.load, like=template, memory_like=memory_template
        )
        state, memory = load(rounds_done)
        if self._memory is not None:
            earlier = []
            for version in self._checkpoints.rounds():
                # An unreadable checkpoint cannot be restored and needs no rows.
                with contextlib.suppress(ResumeError):
                    if version < rounds_done:
                        earlier.append(load(version)[1])
            with _naming_damaged_memory():
                self._memory.restore(memory, earlier)
        return state

    def save(self) -> None:
        """Saves the state after the last completed round."""
        if self.rounds_done > self._saved:
            memory = None if self._memory is None else self._memory.save()
            self._checkpoints.save(self.rounds_done, self._state, memory)
            self._write_model()
            self._saved = self.rounds_done

    def write_latest_model(self) -> None:
        """Writes the SavedModel of a run that stops after some of its rounds."""
        if self.rounds_done and self._saved_model_round != self.rounds_done:
            model_files.write_latest(
                self._spec.output_dir, self._spec.task.model, self.weights
            )

    def _mend_model(self) -> None:
        """Writes the model of the last checkpoint, if a killed run could not do so."""
        directory = self._spec.output_dir
        if self.rounds_done and not model_files.has_round(directory, self.rounds_done):
            with results_folder.naming_errors(directory):
                self._write_model()

    def _write_model(self) -> None:
        is_first = model_files.write_round(
            self._spec.output_dir,
            self.rounds_done,
            self._spec.task.model,
            self.weights,
            kept=self._checkpoints.rounds(),
            encoding=self._spec.task.encoding,
        )
        if is_first:
            self._saved_model_round = self.rounds_done

    def _enter_stage(self, index: int) -> None:
        """Enters another stage, carrying over only the model's weights."""
        weights = self.weights
        process = self._spec.stages[index].process
        self._state = process.set_model_weights(process.initialize(), weights)
        self._stage_index = index
        self._make_memory(index)

    def _round(self, round_num: int) -> dict[str, Any]:
        """Runs one round and returns its metrics."""
        spec = self._spec
        index = _stage_of_round(spec.stages, round_num)
        if index != self._stage_index:
            self._enter_stage(index)
        stage = spec.stages[index]
        is_pooled = stage.clients_per_round is None
        tracks = spec.options.track_improvement and not is_pooled
        before = self.weights if tracks else None
        traffic = execution.total_traffic()
        start = time.monotonic()
        datasets = self._cohorts.datasets(round_num)
        if self._memory is not None:
            datasets = self._with_memory(datasets, round_num)
        with execution.measured_communication() as meter:
            output = stage.process.next(self._state, datasets)
        if self._memory is not None:
            self._rows_change = True
            with results_folder.naming_errors(spec.output_dir):
                self._memory.update(output.metrics["client_work"]["memory"])
        seconds = time.monotonic() - start
        self._state = output.state
        self.rounds_done = round_num
        row = {"stage": stage.name, SECONDS: round(seconds, 4)}
        sent = meter.total
        # Pooled examples are in one place: handing them the model is no communication.
        if sent != execution.Communication() and not is_pooled:
            row |= {BYTES_DOWN: sent.bytes_down, BYTES_UP: sent.bytes_up}
        if traffic is not None:
            traffic = execution.total_traffic() - traffic
            row |= {WORKERS_DOWN: traffic.sent_bytes, WORKERS_UP: traffic.reply_bytes}
        if spec.guarantee is not None:
            row[EPSILON] = spec.guarantee.epsilon(round_num)
        row |= without_empty_means(flatten_metrics(output.metrics))
        if before is not None:
            cohort = self._cohort_ids(round_num)
            row |= self._improvement(cohort, before, self.weights)
        return row

    def _with_memory(
        self, datasets: Sequence[cohorts.ClientData], round_num: int
    ) -> list[cohorts.ClientData]:
        """Returns the cohort's data with the clients' memory."""
        positions = cohorts.positions(self._spec.task)
        cohort = [positions[client_id] for client_id in self._cohort_ids(round_num)]
        with _naming_damaged_memory():
            return cohorts.with_memory(datasets, cohort, self._memory)

    def run(self) -> None:
        """Runs the remaining rounds, until the last one or a stop signal."""
        spec = self._spec
        if self.rounds_done == spec.total_rounds:
            if self.rounds_done:
                print(outlook.describe_done(spec), file=sys.stderr, flush=True)
                self._evaluate_last_row()
            return
        with results_folder.naming_errors(spec.output_dir):
            results_folder.remove_final(spec.output_dir)
        batches = outlook.batches_by_round(spec)
        estimated = outlook.estimate(
            spec, self.rounds_done, batches, self.evaluations.client_ids
        )
        if self._stop.received is not None:
            return
        described = outlook.describe(spec, self.rounds_done, estimated)
        print(described, file=sys.stderr, flush=True)
        with Progress(spec.total_rounds, self.rounds_done, work=batches) as progress:
            self._progress = progress
            progress.expect(estimated.rounds)
            first = self.rounds_done + 1
            while self.rounds_done < spec.total_rounds and self._stop.received is None:
                self._last_begun = self.rounds_done + 1
                row = self._measured_round(self._last_begun)
                if row is None:
                    return
                with results_folder.naming_errors(spec.output_dir):
                    self._log.write(self.rounds_done, row)
                    every = spec.options.rounds_per_checkpoint
                    if is_due(self.rounds_done, every, spec.total_rounds):
                        self.save()
                self._worker_memory = max(self._worker_memory, _child_memory())
                progress.advance(row["stage"], row)
                if self.rounds_done == first:
                    outlook.warn_of_long_runs(spec, progress)

    def _evaluate_last_row(self) -> None:
        """Adds the last round's evaluation, if the run was to have more rounds before."""
        rows, options = self.rows(), self._spec.options
        row = rows[-1] if rows and rows[-1][ROUND] == self.rounds_done else None
        due = {
            "eval/": options.rounds_per_eval,
            "personalization/": options.rounds_per_personalization,
        }
        lacking = [
            prefix
            for prefix, every in due.items()
            if every and row and not any(name.startswith(prefix) for name in row)
        ]
        if lacking:
            del row[ROUND]
            row |= self.evaluations.metrics(self.rounds_done, self.weights)
            with results_folder.naming_errors(self._spec.output_dir):
                self._log.write(self.rounds_done, row)

    def _measured_round(self, round_num: int) -> dict[str, Any] | None:
        """Runs a round and measures the model; None if either fails after a signal.

        The round then does not count, and runs again when the run resumes.
        """
        before = self._stage_index, self._state, self._memory, self.rounds_done
        self._rows_change = False
        with self.no_error_after_a_signal():
            row = self._round(round_num)
            return row | self.evaluations.metrics(round_num, self.weights)
        if self._rows_change or self._memory is not before[2]:
            # Clients' rows are of this round: back to the last checkpoint.
            self.rounds_done, self._stage_index, self._state = self._restore()
        else:
            self._stage_index, self._state, self._memory, self.rounds_done = before
        return None

    @contextlib.contextmanager
    def no_error_after_a_signal(self) -> Iterator[None]:
        """Shows an error after a signal to stop instead of raising it.

        A signal to the process group also ends the runtime's processes.
        """
        try:
            yield
        except Exception as error:
            if self._stop.received is None:
                raise
            reason = messages.one_line(error)
            print(f"after the signal: {reason}", file=sys.stderr, flush=True)

    def stop_notice(self) -> str:
        """Says what a signal to stop does and what is saved."""
        progress = self._progress
        in_step = None if progress is None else progress.remaining_in_step
        # A round is done after its evaluation; its weights are there before.
        done = self.rounds_done if progress is None else progress.done
        # After a signal no other round begins, even if this one ends meanwhile.
        last = None if done >= self._spec.total_rounds else self._last_begun
        if last is None and done < self._spec.total_rounds:
            return outlook.stop_before_rounds(self._saved, self._spec.total_rounds)
        return outlook.stop_notice(last, self._saved, in_step, self._stop.may_exit)


def _child_memory() -> int:
    """Returns the memory of the runtime's own processes, bytes."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total


def run(spec: RunSpec, *, may_exit: bool = False) -> RunResult:
    """Runs `spec` to its end, or until SIGINT or SIGTERM asks it to stop.

    After a signal, the current round finishes, a checkpoint is saved, and the function
    returns; a second signal does not wait. Run again with the same spec, it resumes and
    reaches the same results as an uninterrupted run.

    Args:
      spec: What to run.
      may_exit: Whether a second signal ends the process at once; otherwise it raises
        KeyboardInterrupt after the computation that is running.

    Raises:
      ResumeError: If `output_dir` holds another run, a broken one, or one that must not
        be resumed.
      OutputError: If `output_dir` cannot be written.
      FolderInUseError: If another run writes to `output_dir`.
    """
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        with results_folder.naming_errors(spec.output_dir):
            stack.enter_context(results_folder.opened(spec.output_dir))
            held = _check_config(spec)
            if held is None:
                _write_config(spec, ())
        # A row that no checkpoint has is of a round that runs again.
        saved = max(run_folders.checkpoint_rounds(spec.output_dir), default=0)
        started: list[_Training] = []
        stop = stack.enter_context(
            StopOnSignal(
                lambda: (
                    started[0].stop_notice()
                    if started
                    else outlook.stop_before_rounds(saved, spec.total_rounds)
                ),
                may_exit=may_exit,
            )
        )
        training = _Training(spec, stop)
        if held is not None:
            # Not before its state could be read: another --total_rounds would be that
            # of the results in the folder.
            with results_folder.naming_errors(spec.output_dir):
                _write_config(spec, _earlier_programs(spec, held, training.rounds_done))
        evaluations = training.evaluations
        started.append(training)
        # A run that resumes may have another number of rounds.
        if training.rounds_done in range(spec.total_rounds) or not spec.total_rounds:
            tensorboard_files.write_settings(
                spec.output_dir,
                spec.hyperparameters,
                spec.config.get("command"),
                training.rounds_done,
            )
        with contextlib.closing(training):
            training.run()
        with results_folder.naming_errors(spec.output_dir):
            training.save()
        clients = None
        if stop.received is None:
            with training.no_error_after_a_signal():
                clients = evaluations.client_results(
                    training.rounds_done,
                    training.weights,
                    lambda: stop.received is not None,
                )
        if clients is None:
            with results_folder.naming_errors(spec.output_dir):
                training.write_latest_model()
            return RunResult(
                spec=spec,
                rows=training.rows(),
                weights=training.weights,
                stopped_by=stop.received,
                rounds_done=training.rounds_done,
            )
        with results_folder.naming_errors(spec.output_dir):
            return _write_results(spec, training, clients, start)


def _check_config(spec: RunSpec) -> Mapping[str, Any] | None:
    """Checks that a folder holds no other run; returns the configuration of this one."""
    held = checkpoints.check_config(
        spec.output_dir,
        spec.hyperparameters,
        total_rounds="total_rounds" if len(spec.stages) == 1 else None,
        rounds_done=_rounds_done(spec.output_dir),
        fingerprint=spec.task.fingerprint,
    )
    if held is not None and not spec.resume:
        raise ResumeError(
            f"{spec.output_dir} holds a run and --noresume was given: choose another "
            "--output_dir."
        )
    return held


def _earlier_programs(
    spec: RunSpec, held: Mapping[str, Any], rounds_done: int
) -> Sequence[Mapping[str, Any]]:
    """Returns descriptions of the programs that ran a run before another took over.

    Args:
      spec: The run, with the description of the program that runs it now.
      held: The configuration in its folder.
      rounds_done: The rounds that earlier programs have done.
    """
    last = {name: held.get(name) for name in _OF_PROGRAM}
    earlier = list(held.get(_EARLIER) or ())
    if last == files.to_plain({name: spec.config.get(name) for name in _OF_PROGRAM}):
        return earlier
    return [*earlier, {**last, "rounds_done": rounds_done}]


def _write_config(spec: RunSpec, earlier: Sequence[Mapping[str, Any]]) -> None:
    checkpoints.write_config(
        spec.output_dir,
        {
            **spec.config,
            **({_EARLIER: earlier} if earlier else {}),
            "hyperparameters": dict(spec.hyperparameters),
            files.FINGERPRINT: spec.task.fingerprint,
        },
    )


def _rounds_done(directory: pathlib.Path) -> int:
    """Returns the last round of a checkpoint or of a row."""
    path = directory / "metrics.csv"
    rows = read_rows(path) if path.is_file() else []
    saved = run_folders.checkpoint_rounds(directory)
    return max([*saved, *(row[ROUND] for row in rows)], default=0)


def _write_results(
    spec: RunSpec,
    training: _Training,
    clients: Sequence[evaluation.ClientResult],
    start: float,
) -> RunResult:
    """Writes the results of a finished run; `start` is its start time."""
    directory, rows = spec.output_dir, training.rows()
    rejections = results.Rejections.of_rows(
        rows, training.rounds_done, training.num_participations()
    )
    summary = files.to_plain(
        results.summarize(
            spec.task,
            rows,
            clients,
            rejections,
            wall_seconds=time.monotonic() - start,
            peak_memory=training.peak_memory,
            attack=spec.attack,
            guarantee=spec.guarantee,
        )
    )
    results.write_clients(directory / "per_client.csv", clients)
    model_files.write_final(
        directory, spec.task.model, training.weights, spec.task.encoding
    )
    plots.draw_all(rows, clients, spec.title, directory / "plots", spec.task)
    tensorboard_files.write_plots(
        directory, sorted((directory / "plots").glob("*.png")), training.rounds_done
    )
    files.write_json(directory / "summary.json", summary)
    return RunResult(
        spec=spec,
        rows=rows,
        weights=training.weights,
        clients=clients,
        summary=summary,
        rounds_done=training.rounds_done,
        warning=rejections.describe(
            spec.options.client_dropout, attacked=spec.attack is not None
        ),
        learned_nothing=rejections.all_rounds,
    )
