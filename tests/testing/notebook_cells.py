"""Runs the cells of a notebook where it is started, in a running event loop.

    python -P notebook_cells.py NOTEBOOK EXPRESSION...

Jupyter, too, runs cells in an event loop, with none of the project's folders on the path.
In the end it writes the values of the expressions to standard output, as a line of JSON.
"""

import asyncio
import json
import pathlib
import sys


async def _run(path: str) -> dict:
    """Runs the code cells; returns their variables."""
    notebook = json.loads(pathlib.Path(path).read_text())
    variables = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), variables)  # noqa: S102
    return variables


if __name__ == "__main__":
    _, notebook_path, *expressions = sys.argv
    found = asyncio.run(_run(notebook_path))
    values = [eval(each, found) for each in expressions]
    print(json.dumps(values))
