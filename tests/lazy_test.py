"""Packages import their modules when these are first needed."""

import importlib
import sys

import pytest

import tff_algos
from tff_algos import lazy


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from tff_algos import lazy\n"
        "__getattr__, __dir__ = lazy.attributes(__name__, 'public')\n"
    )
    (folder / "light.py").write_text("VALUE = 1\n")
    (folder / "public.py").write_text("build = 2\n__all__ = ['build']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("lazy_package")
    for name in [name for name in sys.modules if name.startswith("lazy_package")]:
        del sys.modules[name]


def test_a_submodule_is_imported_alone(package):
    assert package.light.VALUE == 1
    assert "lazy_package.light" in sys.modules
    assert "lazy_package.public" not in sys.modules


def test_other_names_are_the_public_modules(package):
    assert package.build == 2
    assert dir(package) == ["build"] and package.__all__ == ["build"]


@pytest.mark.parametrize("name", ["nothing", "_private", "__path_hook__"])
def test_a_missing_name_is_an_attribute_error(package, name):
    with pytest.raises(
        AttributeError, match=f"'lazy_package' has no attribute '{name}'"
    ):
        getattr(package, name)


def test_what_tools_ask_of_every_module_imports_nothing(package):
    assert not hasattr(package, "_repr_html_")
    assert "lazy_package.public" not in sys.modules


def test_this_package_is_lazy():
    get, names = lazy.attributes("tff_algos", "public")
    assert get("build_fed_avg") is tff_algos.build_fed_avg
    assert "build_fed_avg" in names()
