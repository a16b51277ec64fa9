"""What a file does not have is said before TensorFlow is imported."""

import numpy as np
import pytest

from tests.testing.command_line import run_and_look_for_tensorflow
from tff_algos.experiments import declarations, own_columns
from tff_algos.hyperparameters import HyperparameterError

WHAT = declarations.load()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "people.csv").write_text("dose;sex;ill\n1;m;yes\n2;f;no\n")
    np.savez(tmp_path / "arrays.npz", x=np.ones([2, 3]), y=np.arange(2), who=["a", "b"])
    (tmp_path / "broken.csv").write_bytes(b"\x1f\x8b no table")
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    return tmp_path


def _check(task, **settings):
    own_columns.check(
        WHAT, task, declarations.resolve_pair(WHAT, "fedavg", task, settings)
    )


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("csv:{}/people.csv", {"label": "ill", "categories": "sex"}),
        ("csv:{}/people.csv", {"label": "ill", "features": "dose"}),
        ("npz:{}/arrays.npz", {}),
        ("npz:{}/arrays.npz", {"client_column": "who"}),
        # Said by the task, which reads them.
        ("csv:{}/broken.csv", {}),
        ("npz:{}/broken.npz", {}),
        ("csv:{}/none.csv", {}),
        ("mnist", {}),
    ],
)
def test_names_that_are_there_are_taken(folder, task, settings):
    _check(task.format(folder), **settings)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (
            "csv:{}/people.csv",
            {},
            "^label is missing: .*people.csv has no column 'label', .* one of dose, sex",
        ),
        (
            "csv:{}/people.csv",
            {"label": "il"},
            "^label='il' .* column of .*: dose, sex,",
        ),
        (
            "csv:{}/people.csv",
            {"label": "ill", "client_column": "who"},
            "^client_column='who' .* column of .*people.csv: dose",
        ),
        (
            "csv:{}/people.csv",
            {"label": "ill", "features": "dose,age"},
            "^features='age' .* a column of",
        ),
        (
            "csv:{}/people.csv",
            {"label": "ill", "categories": "job"},
            "^categories='job' .* a column of",
        ),
        ("npz:{}/arrays.npz", {"label": "z"}, "^label='z' .* array of .*: x, y, who"),
        ("npz:{}/arrays.npz", {"features": "f"}, "^features='f' .* array of .*: x, y"),
    ],
)
def test_names_that_are_not_there_are_refused(folder, task, settings, message):
    with pytest.raises(HyperparameterError, match=message):
        _check(task.format(folder), **settings)


@pytest.mark.parametrize("compare", [False, True])
def test_a_mistyped_column_is_told_without_tensorflow(folder, compare):
    """A second run with the right name is seconds away, not the import of TensorFlow."""
    words = ["compare", "fedavg"] if compare else ["--algo=fedavg"]
    words += [f"--task=csv:{folder}/people.csv", "--label=il"]
    finished, has_imported = run_and_look_for_tensorflow(*words)
    assert finished.status == 2, finished.err
    assert "--label='il' is not valid: expected a column of " in finished.err
    assert not has_imported
