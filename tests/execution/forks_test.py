"""What was made before a fork says so in the child."""

import os

import pytest

from tff_algos.execution import forks


def test_in_its_own_process_everything_goes_on():
    forks.Owner().check("The context")


def test_another_process_is_told(monkeypatch):
    owner = forks.Owner()
    monkeypatch.setattr(forks.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="^The context was created before .* forked"):
        owner.check("The context")
    assert os.getpid() == -1
