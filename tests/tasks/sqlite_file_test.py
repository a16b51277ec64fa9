"""Files of another form than TFF's are named before they are read."""

import contextlib
import sqlite3

import pytest

from tasks.task import TaskError
from tests.testing.emnist_file import load, write


def _change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


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
    path = write(tmp_path)
    load(tmp_path)
    _change(path, *statements)
    with pytest.raises(TaskError) as error:
        load(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{path} is not a whole dataset file ({problem}")
    assert "--data=tff downloads it again" in message and "\n" not in message


def test_a_damaged_schema_that_sqlite_quotes_is_named(tmp_path):
    path = write(tmp_path)
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE examples") == 1
    content = content.replace(b"examplesexamples", b"\x97xamplesexamples")
    path.write_bytes(
        content.replace(b"CREATE TABLE examples", b"CREATE TABLE (xamples")
    )
    with pytest.raises(TaskError, match=f"{path} is not a whole dataset file"):
        load(tmp_path)
