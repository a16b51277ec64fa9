"""What every test needs: TFF made importable, its runtime, and real data if any."""

import contextlib
import lzma
import os
import pathlib
import shutil
import signal
import sqlite3

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest

from tests.testing import function_caches
from tests.testing.tiers import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
)
from tff_algos import compat, execution  # noqa: F401

_NUM_WRITERS = 40

# Programs in the background ignore SIGINT, and so do their children; TFF ends its worker
# by SIGINT and waits until it has ended.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _data_folder() -> pathlib.Path | None:
    named = os.environ.get("TFF_ALGOS_TEST_DATA")
    default = pathlib.Path(__file__).parents[1].parent / "shared" / "data"
    folder = pathlib.Path(named) if named else default
    return folder if folder.is_dir() else None


def _place(folder: pathlib.Path, name: str, target: pathlib.Path) -> None:
    packed = folder / f"{name}.lzma"
    if (folder / name).exists():
        shutil.copyfile(folder / name, target)
    elif packed.exists():
        with lzma.open(packed) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    else:
        pytest.skip(f"no {name} in {folder} (set TFF_ALGOS_TEST_DATA)")


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory) -> str:
    """A cache folder with real EMNIST (a few writers) and Shakespeare files."""
    folder = _data_folder()
    if folder is None:
        pytest.skip("no folder of real data (set TFF_ALGOS_TEST_DATA)")
    cache = tmp_path_factory.mktemp("cache")
    _place(folder, "shakespeare.sqlite", cache / "shakespeare.sqlite")
    emnist = cache / "emnist_all.sqlite"
    _place(folder, "emnist_all.sqlite", emnist)
    with contextlib.closing(sqlite3.connect(emnist)) as connection:
        keep = (
            "SELECT DISTINCT client_id FROM client_metadata ORDER BY client_id "
            f"LIMIT {_NUM_WRITERS}"
        )
        for table in ("examples", "client_metadata"):
            connection.execute(f"DELETE FROM {table} WHERE client_id NOT IN ({keep})")
        connection.commit()
        connection.execute("VACUUM")
    return str(cache)


@pytest.fixture(scope="module", autouse=True)
def in_process_context():
    """Runs a module's computations in this process, as main.py does by default.

    One context for all modules would keep the programs of all their computations.
    """
    yield execution.set_in_process_context()
    function_caches.forget_graphs()


@pytest.fixture(scope="session")
def native_context():
    """TFF's own runtime, with one worker for all tests that ask for it."""
    with contextlib.closing(execution.NativeContext()) as context:
        yield context
