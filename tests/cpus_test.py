"""The processors that this process may use."""

import os

import pytest

from tff_algos import cpus


def test_those_that_the_process_is_pinned_to_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 0, 2}, raising=False)
    assert cpus.count() == 3


def test_all_count_where_processes_cannot_be_pinned(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cpus.count() == 7


@pytest.mark.parametrize(
    ("told", "expected"),
    [("2048K\n", 2048 * 1024), ("unknown\n", 512 * 1024), (None, 512 * 1024)],
)
def test_the_size_of_the_level_2_cache_is_what_linux_tells(
    tmp_path, monkeypatch, told, expected
):
    path = tmp_path / "size"
    if told is not None:
        path.write_text(told)
    monkeypatch.setattr(cpus, "_LEVEL_2", path)
    assert cpus.level_2_cache_bytes.__wrapped__() == expected
