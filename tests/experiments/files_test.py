"""Files of a run are written whole or not at all, and as strict JSON."""

import json
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from tff_algos.experiments import files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "value.json"
    files.write_json(path, {"a": np.float32(1.5), "b": np.arange(2)})
    assert path.read_text() == '{\n  "a": 1.5,\n  "b": [\n    0,\n    1\n  ]\n}\n'
    with pytest.raises(ZeroDivisionError), files.replacing(path) as file:
        file.write("half")
        raise ZeroDivisionError
    assert path.read_text().startswith('{\n  "a": 1.5')
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_a_file_has_the_permissions_of_other_new_files(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        with files.replacing(tmp_path / "text") as file:
            file.write("a")
        with files.replacing_bytes(tmp_path / "bytes") as file:
            file.write(b"a")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == mode


def test_json_has_null_where_there_is_no_number(tmp_path):
    value = {
        "nan": math.nan,
        "scalar": np.float32("inf"),
        "array": np.array([1.0, -np.inf]),
        "tuple": (math.inf, {"deep": np.float64("nan")}),
        "kept": [0.5, 3, True, None, "nan"],
    }
    files.write_json(tmp_path / "value.json", value)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "value.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {
        "nan": None,
        "scalar": None,
        "array": [1.0, None],
        "tuple": [None, {"deep": None}],
        "kept": [0.5, 3, True, None, "nan"],
    }
    with pytest.raises(TypeError, match="not JSON serializable"):
        files.write_json(tmp_path / "value.json", {"of no type": object()})
    assert (tmp_path / "value.json").read_text() == text


def test_removing_a_link_leaves_what_it_points_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    files.remove(tmp_path / "link")
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


def test_tensorflow_logs_no_save_in_a_notebook():
    logger = logging.getLogger("tensorflow")
    level = logger.level
    try:
        for before, within in (
            (logging.INFO, logging.WARNING),
            (logging.ERROR, logging.ERROR),
        ):
            logger.setLevel(before)
            with files.without_log():
                assert logger.level == within
            assert logger.level == before
    finally:
        logger.setLevel(level)


def test_files_are_in_utf_8_whatever_the_locale(tmp_path):
    program = (
        "from tff_algos.experiments import files\n"
        "with files.replacing('clients.csv') as file: file.write('\\u6771\\u4eac')\n"
    )
    subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", program],
        cwd=tmp_path,
        env=os.environ
        | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": os.getcwd()},
        check=True,
    )
    assert (tmp_path / "clients.csv").read_bytes().decode() == "東京"


def test_long_names_are_cut_off_and_still_differ():
    assert files.short_name("comparison-csv:a/b.csv") == "comparison-csv_a_b.csv"
    names = [files.short_name("ü" * 300 + end) for end in "ab"]
    assert len(set(names)) == 2
    assert all(len(name.encode()) < 255 and name.startswith("üü") for name in names)
