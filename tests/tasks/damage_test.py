"""Damaged records of federated examples are named with their file and client."""

import pytest

from tasks.task import TaskError
from tests.testing.command_line import SMALL, run_here
from tests.testing.emnist_file import image, load, write


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\x01hello", r"Could not parse example input, value: .*hello'"),
        (b"\x0a\xff\xfe\xfd", "a record cannot be parsed"),
        (b"", "Feature: label .* is required but could not be found"),
        ({"snippets": b"To be"}, "Feature: label .* could not be found"),
        (image(pixel=1e30), r"pixels are not in \[0, 1\]"),
        (image(pixel=float("nan")), r"pixels are not in \[0, 1\]"),
        (image(label=10), r"labels are not in \[0, 10\)"),
        (image(label=-1), r"labels are not in \[0, 10\)"),
    ],
)
def test_a_damaged_record_names_file_and_client(record, reason, tmp_path):
    path = write(tmp_path, b=[record])
    task = load(tmp_path)
    assert len(task.examples("a", "train")[1]) == 1
    with pytest.raises(TaskError, match=reason) as error:
        task.examples("b", "train")
    message = str(error.value)
    assert message.startswith(f"{path}: the examples of client 'b' cannot be read (")
    assert message.endswith("--data=generated needs no download.")
    assert "\n" not in message and message.isprintable() and len(message) < 500


def test_a_damaged_record_ends_a_run_in_one_line(tmp_path, capfd):
    path = write(tmp_path, b=[b"hello"])
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
