"""Compares algorithms, flag files and completed runs in one table.

    python main.py compare fedavg scaffold --task=mnist --partition=dirichlet:0.1
    python main.py compare 'presets/gradma/tables_1_2_mnist_10_per_round_0.01/*.flags' --seeds=1
    python main.py compare runs/one runs/another

Each algorithm, flag file and completed run is a row. The command's own flags:

    --seeds=3           seeds of every row
    --jobs=1            concurrent runs
    --grid=NAME=V1,V2   a row for each value of a flag; several make a grid
    --columns=C1,C2     columns of the table, of those below
    --output_dir=DIR    folder of the runs and the report (runs/comparison-..., one for
                        each task, folder of flag files and set of other flags)

Flags of a run apply to every row whose algorithm and task have them. The columns of the
table:

    rounds_to:ACC  first evaluated round with eval/accuracy >= ACC, <= 1 ("-": never)
    final:METRIC   mean of the last 10 rows of metrics.csv that have it (or of all)
    last:METRIC    value in the last row of metrics.csv that has it
    best:METRIC    the largest value; for a loss, the smallest
    seconds        median seconds per round
    KEY            a number in summary.json: excluded.num_empty_clients; keys of
                   `personalization` need no prefix: initial_accuracy

Cells are means over seeds with the population standard deviation; seeds without a value
are excluded. A completed run is not repeated with the same flags, a stopped run is
resumed, and a failed run is reported while the others go on.
"""

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Sequence

from absl import flags

from tff_algos.experiments import run_flags
from tff_algos.experiments.comparison import column_names
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import (
    folder_of,
    make_rows,
    matching,
    serialized,
)


def modules_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """Returns the modules that arguments, or the flag files to be compared, name."""
    words = [each for each in arguments if not each.startswith("-")]
    patterns = [each for each in words if each.endswith(".flags") or "*" in each]
    found = itertools.chain.from_iterable(map(matching, patterns))
    presets = [f"--flagfile={each}" for each in sorted(found) if os.path.isfile(each)]
    return tuple(dict.fromkeys(run_flags.modules_of([*arguments, *presets])))


def parse(arguments: Sequence[str]) -> tuple[flags.FlagValues, list[str], list[str]]:
    """Returns the command's own flags, what is compared, and the rows' flags.

    Raises:
      ComparisonError: If a flag is unknown or cannot be parsed.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    flags.DEFINE_multi_string(
        "grid", [], "A flag and its values, name=value,value.", flag_values=values
    )
    flags.DEFINE_integer(
        "seeds", 3, "Seeds of every row.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_list("columns", [], "Columns of the table.", flag_values=values)
    flags.DEFINE_integer(
        "jobs", 1, "Concurrent runs.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_bool("help", False, "Explain the command.", flag_values=values)
    own = set(values)
    what = run_flags.declared(modules_of(arguments))
    run_flags.define(what, values)
    try:
        _, *contenders = values(["compare", *arguments])
    except (flags.Error, ValueError) as error:
        reason = run_flags.reason(error, what, values, arguments)
        raise ComparisonError(reason) from error
    rest = {name for name in values if values[name].present}
    rest -= {*own, "output_dir", "flagfile"}
    return values, contenders, serialized(values, rest)


def main(arguments: Sequence[str]) -> int:
    """Does what the command line asks for and returns the exit status.

    Args:
      arguments: What follows `compare`.

    Returns:
      0, or 1 if a run failed.

    Raises:
      ComparisonError: If a row cannot be made as asked.
    """
    values, contenders, common = parse(arguments)
    if values.help:
        print(__doc__)
        return 0
    modules = modules_of(arguments)
    what = run_flags.declared(modules)
    rows = make_rows(contenders, common, values.grid, what)
    folder = folder_of(values.output_dir, contenders, common)
    for name in values.columns:
        column_names.parse(name)
    # These import TensorFlow, which takes seconds.
    from tff_algos.experiments.comparison import columns, compare, report

    wanted = [columns.parse_column(name) for name in values.columns]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        found = compare.run(rows, modules, values.seeds, wanted, values.jobs, folder)
    except (KeyboardInterrupt, SystemExit):
        print(
            f"stopped; the same command resumes in {folder}",
            file=sys.stderr,
        )
        raise
    table = found.table
    if sys.stdout.isatty():
        table = found.cells.for_width(shutil.get_terminal_size().columns)
    print(f"\n{table}\nReport: {folder / report.PAGE_FILE}")
    return int(found.num_failed > 0)
