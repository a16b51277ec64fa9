"""Joining clusters that require a token, and clusters that do not."""

import json
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[3]


def _told(mode):
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    done = subprocess.run(
        [sys.executable, "-m", "tests.testing.ray_tokens", mode],
        capture_output=True,
        text=True,
        check=True,
        cwd=_ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_token_is_sent_to_a_cluster_that_requires_it():
    told = _told("token")
    assert told["with a token"] == "joined"
    assert told["without"].endswith(
        "it requires a token: copy ~/.ray/auth_token from its head."
    )
    assert told["other mode"].endswith(
        "it requires a token, but RAY_AUTH_MODE=disabled: unset RAY_AUTH_MODE."
    )


def test_a_cluster_without_authentication_is_joined_with_and_without_a_token():
    told = _told("disabled")
    assert told["with a token"] == told["without"] == "joined"
    assert told["other mode"].endswith(
        "it requires no token, but RAY_AUTH_MODE=token: unset RAY_AUTH_MODE."
    )
