"""The processors that this process may use."""

import os

from tff_algos import cpus


def test_those_that_the_process_is_pinned_to_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 0, 2}, raising=False)
    assert cpus.count() == 3


def test_all_count_where_processes_cannot_be_pinned(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cpus.count() == 7
