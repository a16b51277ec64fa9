"""Files of federated examples that are damaged, or of another form than TFF's."""

import contextlib
import sqlite3

import pytest

import tasks
from tasks import emnist
from tasks.task import DataOptions, TaskError
from tests.testing import federated_file
from tests.testing.command_line import SMALL, run_here

CLIENTS = ("a", "b", "c")


def _image(label=3, pixel=0.5):
    return {"pixels": [pixel] * 784, "label": label}


def _write_emnist(folder, **records):
    """Writes a file of three writers of digits; `records` are added to theirs."""
    path = folder / emnist.FILE_NAME
    writers = {name: [_image(), *records.get(name, ())] for name in CLIENTS}
    splits = ("digits_only_train", "digits_only_test")
    federated_file.write(path, dict.fromkeys(splits, writers))
    return path


def _load(folder):
    return tasks.load_task(
        "emnist",
        emnist.EmnistOptions(only_digits=True, model="2nn"),
        DataOptions(cache_dir=str(folder)),
    )


def _change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\x01hello", r"Could not parse example input, value: .*hello'"),
        (b"\x0a\xff\xfe\xfd", "a record cannot be parsed"),
        (b"", "Feature: label .* is required but could not be found"),
        ({"snippets": b"To be"}, "Feature: label .* could not be found"),
        (_image(pixel=1e30), r"pixels are not in \[0, 1\]"),
        (_image(pixel=float("nan")), r"pixels are not in \[0, 1\]"),
        (_image(label=10), r"labels are not in \[0, 10\)"),
        (_image(label=-1), r"labels are not in \[0, 10\)"),
    ],
)
def test_a_damaged_record_names_file_and_client(record, reason, tmp_path):
    path = _write_emnist(tmp_path, b=[record])
    task = _load(tmp_path)
    assert len(task.examples("a", "train")[1]) == 1
    with pytest.raises(TaskError, match=reason) as error:
        task.examples("b", "train")
    message = str(error.value)
    assert message.startswith(f"{path}: the examples of client 'b' cannot be read (")
    assert message.endswith("--data=generated needs no download.")
    assert "\n" not in message and message.isprintable() and len(message) < 500


def test_a_damaged_record_ends_a_run_in_one_line(tmp_path, capfd):
    path = _write_emnist(tmp_path, b=[b"hello"])
    finished = run_here(
        capfd,
        "--algo=fedavg",
        "--task=emnist",
        "--only_digits",
        "--model=2nn",
        "--clients_per_round=2",
        *SMALL,
        "--data=tff",
        f"--cache_dir={tmp_path}",
        f"--output_dir={tmp_path / 'run'}",
    )
    assert finished.status == 2
    assert f"error: {path}: the examples of client 'b' cannot be read (" in finished.err
    assert "Traceback" not in finished.err


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (
            ["ALTER TABLE examples DROP COLUMN serialized_example_proto"],
            "its table examples has no column serialized_example_proto",
        ),
        (
            ["ALTER TABLE client_metadata RENAME COLUMN split_name TO split"],
            "its table client_metadata has no column split_name",
        ),
        (
            ["UPDATE client_metadata SET client_id = NULL WHERE client_id = 'b'"],
            "its table client_metadata has a client_id that is null, not text",
        ),
        (
            [
                "ALTER TABLE examples RENAME TO old",
                "CREATE TABLE examples AS SELECT split_name, "
                + "unicode(client_id) AS client_id, serialized_example_proto FROM old",
            ],
            "its table examples has a client_id that is integer, not text",
        ),
        (
            ["UPDATE client_metadata SET client_id = CAST(X'FF' AS TEXT)"],
            "Could not decode to UTF-8",
        ),
        (
            ["UPDATE client_metadata SET client_id = 'O''Brien'"],
            'the client_id "O\'Brien" has a quote',
        ),
    ],
)
def test_a_file_of_another_form_is_named(statements, problem, tmp_path):
    path = _write_emnist(tmp_path)
    _load(tmp_path)
    _change(path, *statements)
    with pytest.raises(TaskError) as error:
        _load(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{path} is not a whole data set file ({problem}")
    assert "--data=tff downloads it again" in message and "\n" not in message


def test_a_damaged_schema_that_sqlite_quotes(tmp_path):
    path = _write_emnist(tmp_path)
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE examples") == 1
    content = content.replace(b"examplesexamples", b"\x97xamplesexamples")
    path.write_bytes(
        content.replace(b"CREATE TABLE examples", b"CREATE TABLE (xamples")
    )
    with pytest.raises(TaskError, match=f"{path} is not a whole data set file"):
        _load(tmp_path)


@pytest.mark.parametrize("splits", [{}, {"train": {"a": [{"snippets": b"To be"}]}}])
def test_shakespeare_without_clients(splits, tmp_path):
    path = tmp_path / "shakespeare.sqlite"
    federated_file.write(path, splits)
    message = f"{path} lacks clients of the split train or test; use a whole file"
    with pytest.raises(TaskError, match=message):
        tasks.load_task(
            "shakespeare", data_options=DataOptions(cache_dir=str(tmp_path))
        )
