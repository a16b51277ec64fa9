"""How long a round of 10,000 clients takes on 2 to 512 Ray workers: measured, simulated.

    python benchmarks/scaling.py                      # measures, then simulates
    python benchmarks/scaling.py --costs=FILE.json    # simulates with earlier costs

Rounds with one worker on this machine give the time of a client, of the driver for each
client's values, and the sizes of messages. A simulation that calls the runtime's own
scheduler gives the rest; network links are assumed to carry --gigabits per second.
Writes costs.json, table.md and rounds.png to --output_dir. Needs `make setup RAY=1`.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import matplotlib.figure

from benchmarks.comparison import machine, round_simulation
from benchmarks.comparison.round_simulation import Costs
from benchmarks.engines import run_tff, workloads
from benchmarks.engines.workloads import Workload
from tff_algos import execution

NUM_CLIENTS = 10_000
NUM_WORKERS = tuple(2**k for k in range(1, 10))
# Of `set_ray_context`, in the simulation.
CLIENTS_PER_SUM = 20
# A client of EMNIST as (task, client id, split, batches, seed).
_CLIENT_BYTES = 771
# The driver's time per client is the difference between two cohorts.
_COHORTS = (4, 12)
_MODELS = {
    "1.2 million weights": Workload("W1", "cnn", 1, 100, 20, learning_rate=0.005),
    "25 million weights": Workload("25M", "dense", 1, 100, 20, 0.01, 31_447),
}


@attrs.frozen
class _Round:
    """The least of several rounds of one cohort, since other programs may run as well.

    Attributes:
      driver_seconds: The driver's processor time.
      submit_seconds: Of these, to send shares.
      worker_seconds: The worker's time for all clients.
      traffic: What the last round sent and received.
    """

    driver_seconds: float
    submit_seconds: float
    worker_seconds: float
    traffic: object


class _Stopwatch:
    """Adds up the processor time of calls."""

    def __init__(self):
        self.seconds = 0.0

    def timed(self, function: Callable) -> Callable:
        def call(*args, **kwargs):
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - start

        return call


def _measure_rounds(
    workload: Workload, context: execution.RayContext, num_rounds: int
) -> _Round:
    fleet, submits = context._fleet, _Stopwatch()
    fleet.submit = submits.timed(type(fleet).submit.__get__(fleet))
    inputs = workloads.generate(workload, seed=0)
    arguments = argparse.Namespace(keras=False, own_layers=False, process="tff")
    process = run_tff._build_process(inputs, arguments)
    clients = run_tff._build_clients(inputs)
    state = process.initialize()
    driver, sending, worker = [], [], []
    for number in range(num_rounds + 1):
        submits.seconds = 0.0
        start = time.process_time()
        state = process.next(state, clients).state
        if number:
            driver.append(time.process_time() - start)
            sending.append(submits.seconds)
            worker.append(context.traffic.worker_seconds)
    return _Round(min(driver), min(sending), min(worker), context.traffic)


def _measure(
    workload: Workload,
    context: execution.RayContext,
    num_rounds: int,
    link_bytes: float,
) -> Costs:
    few, many = (
        _measure_rounds(
            dataclasses.replace(workload, num_clients=size), context, num_rounds
        )
        for size in _COHORTS
    )
    calls = many.traffic.num_calls + few.traffic.num_calls
    per_call = (few.submit_seconds + many.submit_seconds) / calls
    rest = [each.driver_seconds - each.submit_seconds for each in (few, many)]
    fewer, more = _COHORTS
    per_client = max(0.0, (rest[1] - rest[0]) / (more - fewer))
    return Costs(
        worker_seconds=many.worker_seconds / more,
        driver_seconds=per_client,
        round_seconds=max(0.0, rest[0] - fewer * per_client),
        call_seconds=per_call,
        client_bytes=_CLIENT_BYTES,
        server_bytes=many.traffic.server_bytes,
        reply_bytes=many.traffic.reply_bytes / more,
        link_bytes=link_bytes,
    )


def simulate(costs: Costs) -> dict[str, list[float]]:
    """Returns seconds per round for each of `NUM_WORKERS`, by how values are added."""
    one_by_one = [
        round_simulation.round_seconds(costs, NUM_CLIENTS, n) for n in NUM_WORKERS
    ]
    in_sums = [
        round_simulation.round_seconds(costs, NUM_CLIENTS, n, CLIENTS_PER_SUM)
        for n in NUM_WORKERS
    ]
    in_tree = [
        round_simulation.tree_seconds(costs, NUM_CLIENTS, n) for n in NUM_WORKERS
    ]
    return {
        "client by client": one_by_one,
        f"sums of {CLIENTS_PER_SUM} clients": in_sums,
        "tree of workers (not built)": in_tree,
    }


def table(simulated: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Returns the rows of a Markdown table.

    Args:
      simulated: The results of `simulate` by model.
    """
    titles = ("model", "values added", *(f"{n} workers" for n in NUM_WORKERS))
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for model, curves in simulated.items():
        for name, seconds in curves.items():
            cells = [
                f"{each:,.3g}" if each < 1000 else f"{each:,.0f}" for each in seconds
            ]
            lines.append(f"| {' | '.join([model, name, *cells])} |")
    return "\n".join(lines)


def draw(
    simulated: Mapping[str, Mapping[str, Sequence[float]]],
    all_costs: Mapping[str, Costs],
    path: pathlib.Path,
) -> None:
    """Draws seconds per round by the number of workers, with a panel for each model."""
    figure = matplotlib.figure.Figure(
        figsize=(5.2 * len(simulated), 4.2), layout="constrained"
    )
    axes = figure.subplots(1, len(simulated), sharey=True, squeeze=False)[0]
    markers = ("o", "s", "^")
    for axis, (model, curves) in zip(axes, simulated.items(), strict=True):
        costs = all_costs[model]
        ideal = [NUM_CLIENTS * costs.worker_seconds / n for n in NUM_WORKERS]
        axis.plot(
            NUM_WORKERS, ideal, color="0.6", linestyle="--", label="clients alone"
        )
        for marker, (name, seconds) in zip(markers, curves.items(), strict=True):
            axis.plot(NUM_WORKERS, seconds, marker=marker, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(NUM_WORKERS, [str(n) for n in NUM_WORKERS])
        axis.set_xlabel("workers")
        axis.set_title(f"{model}, {NUM_CLIENTS:,} clients")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds per round (simulated)")
    axes[0].legend()
    figure.savefig(path, dpi=110)


def _measured(num_rounds: int, gigabits: float) -> dict[str, Costs]:
    found = {}
    with execution.ray_context(1) as context:
        for model, workload in _MODELS.items():
            found[model] = _measure(workload, context, num_rounds, gigabits * 1e9 / 8)
            print(model, found[model], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--costs", type=pathlib.Path, help="costs.json of earlier")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--gigabits", type=float, default=10.0)
    parser.add_argument(
        "--output_dir", type=pathlib.Path, default=pathlib.Path("runs/bench-scaling")
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds: {arguments.rounds} is not >= 1")
    if not arguments.gigabits > 0:
        parser.error(f"--gigabits: {arguments.gigabits:g} is not > 0")
    folder = arguments.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.costs is None:
        costs = _measured(arguments.rounds, arguments.gigabits)
        content = {model: attrs.asdict(each) for model, each in costs.items()}
        content["machine"] = machine.describe()
        (folder / "costs.json").write_text(json.dumps(content, indent=2) + "\n")
    else:
        content = json.loads(arguments.costs.read_text())
        link = arguments.gigabits * 1e9 / 8
        costs = {m: Costs(**content[m] | {"link_bytes": link}) for m in _MODELS}
    simulated = {model: simulate(each) for model, each in costs.items()}
    text = table(simulated)
    (folder / "table.md").write_text(f"{text}\n")
    draw(simulated, costs, folder / "rounds.png")
    print(f"{text}\nWritten to {folder}.")


if __name__ == "__main__":
    main()
