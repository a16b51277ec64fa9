"""The notebooks run, as in Colab: cell by cell inside a running event loop."""

import asyncio
import json
import pathlib

_FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"


def _run_cells(name):
    """Runs the code cells but for the installation; returns their variables."""
    notebook = json.loads((_FOLDER / name).read_text())
    variables = {"__name__": "__main__"}

    async def kernel():
        for cell in notebook["cells"]:
            installs = "install" in cell["metadata"].get("tags", ())
            if cell["cell_type"] == "code" and not installs:
                exec("".join(cell["source"]), variables)  # noqa: S102

    asyncio.run(kernel())
    return variables


def test_every_notebook_has_a_test():
    assert [path.name for path in _FOLDER.glob("*.ipynb")] == ["quickstart.ipynb"]


def test_quickstart_trains_and_personalizes():
    variables = _run_cells("quickstart.ipynb")
    assert variables["losses"][-1] < variables["losses"][0]
    curve = variables["curve"]
    assert len(curve) == 6 and curve[-1] > curve[0]
    train = variables["stock_output"].metrics["client_work"]["train"]
    assert train["num_examples"] > 0
