"""Simulated rounds: what must hold whatever was measured."""

import json
import pathlib
import subprocess
import sys

import attrs
import pytest

from benchmarks import scaling
from benchmarks.comparison import round_simulation
from benchmarks.comparison.round_simulation import Costs

_FREE = Costs(
    worker_seconds=1.0,
    driver_seconds=0.0,
    round_seconds=0.0,
    call_seconds=0.0,
    client_bytes=0.0,
    server_bytes=0.0,
    reply_bytes=0.0,
    link_bytes=1e9,
)


@pytest.mark.parametrize("num_workers", [1, 2, 16])
def test_without_other_costs_workers_divide_the_clients(num_workers):
    seconds = round_simulation.round_seconds(_FREE, 160, num_workers)
    assert seconds == pytest.approx(160 / num_workers)


def test_the_driver_bounds_a_round_from_below():
    costs = attrs.evolve(_FREE, driver_seconds=0.5, round_seconds=3.0)
    seconds = round_simulation.round_seconds(costs, 200, 64)
    assert 3.0 + 200 * 0.5 < seconds < 3.0 + 200 * 0.5 + 8.0
    # Of five clients, one sum comes.
    sums = round_simulation.round_seconds(costs, 200, 64, clients_per_sum=5)
    assert 3.0 + 40 * 0.5 < sums < 3.0 + 40 * 0.5 + 8.0


def test_the_link_bounds_a_round_from_below():
    values = attrs.evolve(_FREE, worker_seconds=0.0, reply_bytes=1e8)
    assert round_simulation.round_seconds(values, 50, 8) == pytest.approx(5.0)
    weights = attrs.evolve(_FREE, worker_seconds=0.0, server_bytes=1e9)
    assert round_simulation.round_seconds(weights, 64, 4) == pytest.approx(4.0)


def test_a_trees_levels_grow_with_the_logarithm():
    costs = attrs.evolve(_FREE, driver_seconds=0.25, reply_bytes=5e8, server_bytes=1e9)
    level = 0.25 + 0.5 + 1.0
    assert round_simulation.tree_seconds(costs, 64, 8) == pytest.approx(8 + 4 * level)
    assert round_simulation.tree_seconds(costs, 64, 64) == pytest.approx(1 + 7 * level)


def test_tables_have_a_column_for_each_number_of_workers():
    curves = {"client by client": [1234.5, *[0.25] * (len(scaling.NUM_WORKERS) - 1)]}
    header, _, row = scaling.table({"small": curves}).splitlines()
    assert header.count("workers |") == len(scaling.NUM_WORKERS)
    assert row.startswith("| small | client by client | 1,234 | 0.25 |")


def _run(folder, *arguments):
    """Runs the program and returns a model's seconds per round by number of workers."""
    program = pathlib.Path(__file__).parents[2] / "benchmarks" / "scaling.py"
    done = subprocess.run(
        [sys.executable, str(program), f"--output_dir={folder}", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (folder / "rounds.png").stat().st_size > 10_000
    row = next(x for x in done.stdout.splitlines() if x.startswith("| 25 million"))
    return [float(cell.replace(",", "")) for cell in row.split("|")[3:-1]]


@pytest.mark.slow
def test_the_program_measures_and_simulates_anew_with_a_faster_link(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    measured = _run(tmp_path / "measured", "--rounds=1")
    costs = tmp_path / "measured" / "costs.json"
    assert json.loads(costs.read_text())["machine"]["processor"]
    faster = _run(tmp_path / "faster", f"--costs={costs}", "--gigabits=100")
    # With many workers the link is the limit; with two it is not.
    assert faster[-1] < 0.9 * measured[-1]
    assert faster[0] == pytest.approx(measured[0], rel=0.01)
