"""Makes TensorFlow Federated 0.87.0 work with current TensorFlow and Python versions.

TensorFlow Federated (TFF) needs Keras 2, which is the package `tf-keras` since
TensorFlow 2.16, and it imports `tensorflow_privacy`, whose estimators need the
discontinued package `tensorflow_estimator`. `install`, which `import tff_algos` calls,
fixes both. It imports neither TensorFlow nor TFF, but prepares their later imports:
TensorFlow's C++ code does not log, and TFF's default context is the in-process one.
"""

# Lets older Python versions reach the error message about their version.
from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator

SUPPORTED_PYTHON = ((3, 11), (3, 13))
TFF_VERSION = "0.87.0"

# Packages that TFF's dependencies import but TFF does not use.
_UNUSED_PACKAGES = ("tensorflow_estimator", "tensorflow_privacy.privacy.estimators")


class UnsupportedEnvironmentError(ImportError):
    """The installed Python or packages cannot run TFF; the message says which can."""


class _Anything:
    """Replaces every class of an unused package; can be subclassed."""


class _UnusedModule(types.ModuleType):
    """A module in which every public name is `_Anything`."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _UnusedPackageFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of `_UNUSED_PACKAGES` with empty modules."""

    def find_spec(self, fullname, path=None, target=None):
        if any(
            fullname == package or fullname.startswith(package + ".")
            for package in _UNUSED_PACKAGES
        ):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _UnusedModule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


class _PreparedImportFinder(importlib.abc.MetaPathFinder):
    """Runs the imports of some packages inside a context manager."""

    def __init__(
        self, contexts: dict[str, Callable[[], contextlib.AbstractContextManager]]
    ) -> None:
        self._contexts = contexts

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self._contexts:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            # Not another loader: tools that read resources or sources ask this one.
            spec.loader.exec_module = functools.partial(
                self._execute, self._contexts[fullname], spec.loader.exec_module
            )
        return spec

    @staticmethod
    def _execute(context, execute, module) -> None:
        with context():
            execute(module)


def _check_python(version: tuple[int, int]) -> None:
    oldest, newest = SUPPORTED_PYTHON
    if not oldest <= version <= newest:
        raise UnsupportedEnvironmentError(
            f"tff_algos needs Python {_dotted(oldest)} to {_dotted(newest)}, "
            f"found Python {_dotted(version)}."
        )


def _check_tff(version: str | None) -> None:
    if version != TFF_VERSION:
        found = f"found {version}" if version else "found none"
        raise UnsupportedEnvironmentError(
            f"tff_algos needs tensorflow-federated=={TFF_VERSION}, {found}: "
            "pip install --no-deps --ignore-requires-python -r requirements.txt"
        )


def _check_keras() -> None:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    package = tensorflow.keras.Model.__module__.partition(".")[0]
    if package != "tf_keras":
        raise UnsupportedEnvironmentError(
            f"tensorflow already uses Keras 3 (package {package!r}) and TFF needs "
            "tf-keras: import tff_algos before tensorflow, or set "
            "TF_USE_LEGACY_KERAS=1 in the environment."
        )


def _find_tf_keras() -> None:
    """Leads `import tensorflow.compat.v2.keras` to tf-keras.

    TensorFlow chooses the folder when `tensorflow.compat.v2` is imported. An earlier
    import, such as that of `tf_keras`, may have made it choose Keras 3.
    """
    for name in ("v1", "v2"):
        module = sys.modules.get(f"tensorflow.compat.{name}")
        if module is not None:
            package = importlib.import_module(f"tf_keras.api._{name}")
            module.__path__ = [*package.__path__, *module.__path__]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def _native_stderr_held_back() -> Iterator[None]:
    """Buffers standard error, including C++ output, and shows it only on failure."""
    with contextlib.ExitStack() as stack:
        try:
            held_back = stack.enter_context(tempfile.TemporaryFile())
            stderr = os.dup(2)
        except OSError:
            # There is no standard error, or no place for a temporary file.
            yield
            return
        shown = stack.enter_context(os.fdopen(stderr, "wb"))
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        except BaseException:
            held_back.seek(0)
            shutil.copyfileobj(held_back, shown)
            raise
        finally:
            os.dup2(stderr, 2)


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Imports without the garbage collector, which would find next to nothing.

    Importing TensorFlow and TFF leaves half a million objects. Going through them again
    and again took a fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _importing_tensorflow() -> Iterator[None]:
    """Imports without log output unless TF_CPP_MIN_LOG_LEVEL asks for it.

    TensorFlow 2.21 itself respects the variable only after the import.
    """
    quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") != "0"
    with (
        collection_paused(),
        _native_stderr_held_back() if quiet else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def _importing_tff() -> Iterator[None]:
    """Makes the in-process context the default once TFF has been imported."""
    with collection_paused():
        yield
        _allow_deep_messages()
        importlib.import_module("tff_algos.autograph").leave_own_to_python()
        module = importlib.import_module("tff_algos.execution.default_context")
    tff = sys.modules["tensorflow_federated"]
    tff.framework.set_default_context(module.DefaultContext())


def _allow_deep_messages() -> None:
    """Lets protocol buffers nest deeper than 100 levels, today's limit.

    Computations of nested aggregators do, such as `tff.learning.ddp_secure_aggregator`'s.
    """
    protobuf = importlib.import_module("google.protobuf.internal.api_implementation")
    if protobuf.Type() == "upb":
        message = importlib.import_module("google._upb._message")
        message.SetAllowOversizeProtos(True)


def _enable_onednn() -> None:
    """Turns on oneDNN's kernels, unless the environment says otherwise.

    TensorFlow turns them on by itself only on processors with AVX512-VNNI, BF16 or AMX.
    On others with AVX2, rounds took 0.5 to 0.75 of the CPU time with them (measured
    with logistic regression, a CNN and an LSTM on AMD EPYC).
    """
    if sys.platform == "linux" and platform.machine() == "x86_64":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def install() -> None:
    """Prepares this process for `import tensorflow_federated`; idempotent.

    On Linux with an x86 processor, TensorFlow uses oneDNN unless the environment sets
    `TF_ENABLE_ONEDNN_OPTS=0` or TensorFlow was imported before. Its C++ code logs only if
    the environment sets `TF_CPP_MIN_LOG_LEVEL`. When TFF is imported, the in-process
    context becomes the default; a context that the program sets after that replaces it,
    and if TFF was imported before, its context stays.

    Raises:
      UnsupportedEnvironmentError: If the version of Python or TFF is not supported, or
        TensorFlow was already imported with Keras 3.
    """
    _check_python(sys.version_info[:2])
    _check_tff(_installed_version("tensorflow-federated"))
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _enable_onednn()
    _check_keras()
    _find_tf_keras()
    if not any(isinstance(finder, _UnusedPackageFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _UnusedPackageFinder())
        prepared = {
            "tensorflow": _importing_tensorflow,
            "tensorflow_federated": _importing_tff,
        }
        sys.meta_path.insert(0, _PreparedImportFinder(prepared))
