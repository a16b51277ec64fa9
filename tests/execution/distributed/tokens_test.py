"""Joining clusters that require a token, and clusters that do not."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from tff_algos.execution.distributed import tokens

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


_START_AND_END = """
from tff_algos.execution.distributed import cluster
cluster.open_cluster(None, 1, {"CPU": 1}).close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, 0o600), (0o640, 0o640)])
def test_only_this_user_reads_a_new_token(tmp_path, before, after):
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    token = tmp_path / ".ray" / "auth_token"
    if before is not None:
        token.parent.mkdir()
        token.write_text("0123456789abcdef0123456789abcdef")
        token.chmod(before)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    subprocess.run(
        [sys.executable, "-c", _START_AND_END],
        check=True,
        cwd=_ROOT,
        env={**environment, "HOME": str(tmp_path)},
        umask=0o022,
    )
    assert token.stat().st_mode & 0o777 == after


def test_only_this_user_reads_a_token_of_a_ray_that_does_not_start(
    tmp_path, monkeypatch
):
    path = tmp_path / "auth_token"
    setup = types.SimpleNamespace(_get_default_token_path=lambda: path)
    monkeypatch.setattr(tokens, "_setup", lambda: setup)
    with pytest.raises(KeyboardInterrupt), tokens.kept_private():
        path.write_text("secret")
        path.chmod(0o644)
        raise KeyboardInterrupt
    assert path.stat().st_mode & 0o777 == 0o600


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
