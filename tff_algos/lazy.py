"""Attributes of packages that are imported when they are first needed (PEP 562)."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any


def attributes(
    package: str, public: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    Submodules are imported one at a time, so that those without TensorFlow load in
    milliseconds. Every other name comes from one module.

    Args:
      package: The package, by its `__name__`.
      public: Its submodule with the public symbols and their `__all__`.
    """

    def symbols() -> Any:
        return importlib.import_module(f"{package}.{public}")

    def get(name: str) -> Any:
        # Python and tools ask every module for names such as __path__ and _repr_html_.
        if name.startswith("_") and name != "__all__":
            raise _missing(package, name)
        if importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        if not hasattr(symbols(), name):
            raise _missing(package, name)
        return getattr(symbols(), name)

    def names() -> list[str]:
        return sorted(symbols().__all__)

    return get, names


def _missing(package: str, name: str) -> AttributeError:
    return AttributeError(f"module {package!r} has no attribute {name!r}")
