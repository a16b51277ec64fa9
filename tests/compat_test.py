"""TFF is made importable, or one line says why not."""

import importlib
import platform
import subprocess
import sys
import textwrap

import pytest
from google.protobuf import struct_pb2

from tff_algos import compat


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 14), (4, 0)])
def test_an_unsupported_python_is_named(version):
    found = f"{version[0]}.{version[1]}"
    message = rf"needs Python 3\.11 to 3\.13, found Python {found}\."
    with pytest.raises(compat.UnsupportedEnvironmentError, match=message):
        compat._check_python(version)


@pytest.mark.parametrize(
    ("version", "found"), [("0.88.0", "found 0.88.0"), (None, "found none")]
)
def test_another_tff_is_named_with_what_to_do(version, found):
    with pytest.raises(
        compat.UnsupportedEnvironmentError,
        match=rf"tensorflow-federated==0\.87\.0, {found}: pip install",
    ):
        compat._check_tff(version)


def test_messages_may_be_as_deep_as_computations_of_nested_aggregators():
    importlib.import_module("tensorflow_federated")
    value = struct_pb2.Value(number_value=1)
    for _ in range(200):
        value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value]))
    assert struct_pb2.Value.FromString(value.SerializeToString()) == value


def test_installing_twice_changes_nothing():
    before = list(sys.meta_path)
    compat.install()
    assert sys.meta_path == before


def _run(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
    )


def test_keras_3_that_is_already_in_use_is_one_clear_error():
    finished = _run("import tensorflow as tf; tf.keras.Model; import tff_algos.compat")
    last = finished.stderr.strip().splitlines()[-1]
    assert finished.returncode == 1
    assert "tensorflow already uses Keras 3" in last
    assert "import tff_algos before tensorflow" in last


def test_tf_keras_may_be_imported_first():
    program = (
        "import tf_keras, tff_algos, tensorflow_federated as tff; print(tff.CLIENTS)"
    )
    assert _run(program).stdout.strip() == "CLIENTS"


def test_tensorflow_may_be_imported_first_and_then_logs_as_it_does():
    program = (
        "import tensorflow as tf; from tff_algos import compat; "
        "import tensorflow_federated as tff; print(tff.__version__)"
    )
    finished = _run(program)
    assert finished.stdout.strip() == "0.87.0", finished.stderr
    assert "All log messages before absl" in finished.stderr


@pytest.mark.parametrize(("level", "is_quiet"), [(None, True), ("0", False)])
def test_tensorflow_is_quiet_unless_the_environment_says_otherwise(level, is_quiet):
    environment = {} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}
    finished = _run("import tff_algos; import tensorflow", **environment)
    assert finished.returncode == 0, finished.stderr
    assert (finished.stderr == "") is is_quiet, finished.stderr


@pytest.mark.parametrize("broken", ["os.close(2); sys.stderr = None", "no_folder()"])
def test_without_standard_error_or_a_temporary_folder_imports_go_on(broken):
    finished = _run(
        "import os, sys, tempfile\n"
        "def no_folder():\n"
        "    def fail(*args, **kwargs):\n"
        "        raise FileNotFoundError('no usable temporary directory')\n"
        "    tempfile.TemporaryFile = fail\n"
        f"{broken}\n"
        "from tff_algos import compat\n"
        "with compat._native_stderr_held_back():\n"
        "    print('went on')\n"
    )
    assert finished.stdout == "went on\n", finished.stderr


def test_a_failed_import_shows_what_was_held_back(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os; os.write(2, b'from C++'); raise ImportError('broken')"
    )
    finished = _run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tff_algos, tensorflow"
    )
    assert finished.returncode == 1
    assert "from C++" in finished.stderr and "broken" in finished.stderr


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_garbage_collector_rests_during_an_import_and_is_as_before(
    before, tmp_path
):
    (tmp_path / "tensorflow.py").write_text(
        "import gc; print(gc.isenabled()); raise ImportError('broken')"
    )
    program = f"""
        import contextlib, gc, sys
        import tff_algos
        sys.path.insert(0, {str(tmp_path)!r})
        gc.{before}()
        with contextlib.suppress(ImportError):
            import tensorflow
        print(gc.isenabled())
    """
    finished = _run(textwrap.dedent(program))
    assert finished.stdout.split() == ["False", str(before == "enable")]


def test_the_loader_of_tensorflow_stays_what_it_is():
    program = (
        "import tff_algos, importlib.util as u; s = u.find_spec('tensorflow'); "
        "print(type(s.loader).__name__, s.origin.endswith('__init__.py'))"
    )
    assert _run(program).stdout.split() == ["SourceFileLoader", "True"]


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="skipped: only Linux on x86 chooses",
)
@pytest.mark.parametrize(("chosen", "expected"), [(None, True), ("0", False)])
def test_onednn_is_on_unless_the_environment_says_otherwise(chosen, expected):
    program = (
        "from tff_algos import compat; "
        "from tensorflow.python.util import _pywrap_util_port as port; "
        "print(port.IsMklEnabled())"
    )
    environment = {} if chosen is None else {"TF_ENABLE_ONEDNN_OPTS": chosen}
    assert _run(program, **environment).stdout.strip() == str(expected)
