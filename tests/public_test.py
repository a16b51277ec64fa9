"""What `import tff_algos` offers, and at what price."""

import pathlib
import subprocess
import sys
import tomllib

import tff_algos
from tff_algos import public

_ROOT = pathlib.Path(__file__).parents[1]


def test_every_public_name_is_there():
    for name in tff_algos.__all__:
        assert getattr(tff_algos, name) is getattr(public, name), name


def test_a_name_is_the_public_modules():
    assert tff_algos.build_scaffold is public.build_scaffold


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert tff_algos.__version__ == project["version"]


def test_the_import_leaves_tensorflow_alone():
    program = (
        "import sys, tff_algos; from tff_algos.experiments import cli; "
        "print([m for m in sys.modules if m.partition('.')[0] in "
        "('tensorflow', 'tensorflow_federated', 'matplotlib', 'tasks')])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        check=True,
    )
    assert finished.stdout.strip() == "[]"
