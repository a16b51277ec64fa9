"""Executes notebooks and stores what their cells print and draw: `make notebooks`.

Runs in an environment of its own (requirements.txt here); the kernel finds the project's
packages by PYTHONPATH. Stored outputs are plain text and images, without logs.
"""

import pathlib
import sys

import nbclient
import nbformat

# What is stored of an output: the last of these that it has.
_SHOWN = ("text/plain", "text/markdown", "image/png")


def _kept(outputs: list) -> list:
    """Returns the outputs without logs, each in its richest form."""
    kept = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if "data" in output:
            richest = [kind for kind in _SHOWN if kind in output.data][-1]
            output.data = {richest: output.data[richest]}
        kept.append(output)
    return kept


def execute(path: pathlib.Path) -> None:
    """Executes a notebook in its folder, as Jupyter does, and writes it back."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _kept(cell.outputs)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(pathlib.Path(name).resolve())
        print(f"{name}: done", flush=True)
