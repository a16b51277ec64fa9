"""pyproject.toml says what the other files say."""

import pathlib
import tomllib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_EXTRAS = _PROJECT["optional-dependencies"]


@pytest.mark.parametrize(
    ("extra", "file"),
    [("gpu", "requirements-gpu.txt"), ("ray", "requirements-ray.txt")],
)
def test_packages_of_an_extra_are_those_of_its_requirements(extra, file):
    assert _EXTRAS[extra] == (_ROOT / file).read_text().split()


def test_what_ray_needs_besides_is_in_the_requirements():
    names = {"attrs", "packaging", "protobuf", "requests", "typing-extensions"}
    pinned = (_ROOT / "requirements.txt").read_text().split()
    assert names <= {pin.partition("==")[0] for pin in pinned}


def test_development_packages_are_pinned_as_in_the_requirements():
    assert set(_EXTRAS["dev"]) <= set((_ROOT / "requirements.txt").read_text().split())


@pytest.mark.parametrize("package", ["tasks", "tff_algos"])
def test_no_folder_is_left_out_of_the_package(package):
    files = list((_ROOT / package).rglob("*.py"))
    assert files
    # Setuptools packs no folder without one.
    left_out = {file.parent for file in files} - {
        file.parent for file in files if file.name == "__init__.py"
    }
    assert not left_out
