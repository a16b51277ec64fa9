"""Rounds with clients in Ray workers, compared with one process's.

    python benchmarks/ray_overhead.py --workloads=W1,W2 --workers=1,2

The contexts take turns, round by round, so that a slowdown of the machine affects all of
them. They must change the weights alike: to the bit, or with --clients_per_sum or
--intra_op_threads up to rounding. Prints seconds per round, the bytes that the driver
sent and received, and the seconds that the workers computed. Needs `make setup RAY=1`.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import tensorflow_federated as tff

from benchmarks.comparison import engines, machine, summary
from benchmarks.engines import run_tff, workloads
from tff_algos import execution
from tff_algos.execution.distributed import cluster

_HERE = "one process"


@attrs.frozen
class Measured:
    """One context's rounds of a workload, without the first.

    Attributes:
      seconds: Of each round.
      sent: Bytes that the driver sent in the last round; `None` in one process.
      received: Bytes that it received.
      worker_seconds: How long workers computed in the last round, added up.
    """

    seconds: Sequence[float]
    sent: int | None = None
    received: int | None = None
    worker_seconds: float | None = None


def table(measured: Mapping[str, Mapping[str, Measured]]) -> str:
    """Returns the rows of a Markdown table, one per workload and context.

    Args:
      measured: By workload, then by context; the first is one process.
    """
    titles = ("workload", "clients in", "s per round: median (min-max)")
    titles += ("sent, MB", "received, MB", "workers, s")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for workload, contexts in measured.items():
        for name, each in contexts.items():
            median = statistics.median(each.seconds)
            spread = f"{min(each.seconds):.3g}-{max(each.seconds):.3g}"
            cells = ["", "", ""]
            if each.sent is not None:
                cells = [
                    f"{each.sent / 1e6:.3g}",
                    f"{each.received / 1e6:.3g}",
                    f"{each.worker_seconds:.3g}",
                ]
            row = [workload, name, f"{median:.3g} ({spread})", *cells]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _measure(
    workload: workloads.Workload,
    contexts: Mapping[str, execution.InProcessContext],
    num_rounds: int,
    to_rounding: bool,
) -> dict[str, Measured]:
    inputs = workloads.generate(workload, seed=0)
    arguments = argparse.Namespace(keras=False, own_layers=False, process="tff")
    process = run_tff._build_process(inputs, arguments)
    clients = run_tff._build_clients(inputs)
    states, seconds = {}, {name: [] for name in contexts}
    for number in range(num_rounds + 1):
        for name, context in contexts.items():
            with tff.framework.get_context_stack().install(context):
                if number == 0:
                    states[name] = process.initialize()
                    initial = process.get_model_weights(states[name]).trainable
                start = time.perf_counter()
                states[name] = process.next(states[name], clients).state
                if number:
                    seconds[name].append(time.perf_counter() - start)
    trained = {n: process.get_model_weights(s).trainable for n, s in states.items()}
    limit = engines.tolerance(workload) if to_rounding else 0.0
    for name, weights in trained.items():
        difference = summary.relative_difference(weights, trained[_HERE], initial)
        if not difference <= limit:
            raise AssertionError(
                f"{workload.name}: {name} changes the weights otherwise (relative "
                f"difference {difference:.0e}, limit {limit:.0e})."
            )
    found = {}
    for name, context in contexts.items():
        found[name] = Measured(seconds[name])
        if isinstance(context, execution.RayContext):
            traffic = context.traffic
            found[name] = Measured(
                seconds[name],
                traffic.sent_bytes,
                traffic.reply_bytes,
                traffic.worker_seconds,
            )
    return found


def _start_ray(num_cpus: int) -> None:
    """Starts Ray for this program, which ends it, with so many logical CPUs."""
    cluster.import_ray().init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"worker_niceness": 0},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default="W1,W2", help="of W1 to W6")
    parser.add_argument("--workers", default="1,2", help="numbers of workers")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--clients_per_sum",
        type=int,
        default=1,
        help="as of RayContext; if more than 1, results differ by rounding",
    )
    parser.add_argument(
        "--intra_op_threads",
        type=int,
        help="as of RayContext; results then differ by rounding",
    )
    arguments = parser.parse_args()
    known = engines.WORKLOADS
    unknown = [n for n in arguments.workloads.split(",") if n not in known]
    if unknown:
        parser.error(f"--workloads: {unknown[0]!r} is not one of {', '.join(known)}")
    for number in arguments.workers.split(","):
        if not number.isdecimal() or int(number) < 1:
            parser.error(f"--workers: {number!r} is not a whole number >= 1")
    if arguments.rounds < 1:
        parser.error(f"--rounds: {arguments.rounds} is not >= 1")
    numbers = list(map(int, arguments.workers.split(",")))
    num_cpus = len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        # All contexts' workers fit, but those of only one compute at a time.
        _start_ray(num_cpus * len(numbers))
        contexts = {_HERE: execution.InProcessContext()}
        for number in numbers:
            per_worker = {"CPU": max(1, num_cpus // number)}
            context = execution.RayContext(
                number,
                resources_per_worker=per_worker,
                clients_per_sum=arguments.clients_per_sum,
                intra_op_threads=arguments.intra_op_threads,
            )
            stack.enter_context(contextlib.closing(context))
            contexts[f"{number} Ray worker{'s' if number > 1 else ''}"] = context
        print(machine.processor_line(machine.describe()))
        measured = {}
        for name in arguments.workloads.split(","):
            measured[name] = _measure(
                known[name],
                contexts,
                arguments.rounds,
                arguments.clients_per_sum > 1 or arguments.intra_op_threads is not None,
            )
            print(table({name: measured[name]}), flush=True)
    print(table(measured))


if __name__ == "__main__":
    main()
