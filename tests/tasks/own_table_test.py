"""Tables: columns that are numbers, words, labels and clients."""

import numpy as np
import pytest

from tasks import own_table
from tasks.own_table import Roles
from tasks.task import TaskError

TABLE = {
    "age": np.array(["31", "4.5", "20"]),
    "job": np.array(["cook", "nurse", "cook"]),
    "site": np.array(["x", "y", "x"]),
    "ill": np.array(["no", "yes", "no"]),
}


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "people.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_file_has_columns(delimiter, write):
    lines = ["\ufeffage,ill", "31, yes", "", "4,no"]
    found = own_table.read_csv(write("\n".join(lines).replace(",", delimiter)))
    assert {name: list(column) for name, column in found.items()} == {
        "age": ["31", "4"],
        "ill": ["yes", "no"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "has no rows below its first line"),
        ("a,a\n1,2\n", "has two columns 'a'"),
        ("a,b\n1,2\n1\n", "line 3 has 1 cells, expected 2"),
        (b"a,b\n\xff\xfe,1\n", "cannot be read as CSV"),
    ],
)
def test_other_files_are_refused(text, message, write):
    with pytest.raises(TaskError, match=message):
        own_table.read_csv(write(text))


def test_columns_become_features_labels_and_clients():
    roles = Roles(label="ill", client_column="site", categories=("job",))
    x, y, clients = own_table.encode(TABLE, roles, "t")
    np.testing.assert_array_equal(x, [[31, 1, 0], [4.5, 0, 1], [20, 1, 0]])
    assert list(y) == ["no", "yes", "no"] and list(clients) == ["x", "y", "x"]
    assert x.dtype == np.float64


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            Roles(label="income"),
            "--label=income: t has no such column; its columns are: age, job, site, ill",
        ),
        (Roles(label="ill", client_column="who"), "--client_column=who: t has no such"),
        (Roles(label="ill", features=("wage",)), "--features=wage: t has no such"),
        (
            Roles(label="ill", features=("age", "ill")),
            "--features=ill: expected columns out of age, job, site",
        ),
        (
            Roles(label="ill", features=("age",), categories=("job",)),
            "--categories=job: expected columns out of age",
        ),
        (Roles(label="ill"), "column 'job' has 'cook' in row 1, expected finite"),
    ],
)
def test_what_does_not_fit_is_named(roles, message):
    with pytest.raises(TaskError, match=message):
        own_table.encode(TABLE, roles, "t")


@pytest.mark.parametrize("cell", ["", "nan", "inf", "1e99", "x"])
def test_cells_that_are_no_finite_numbers_are_named(cell):
    table = {"a": np.array(["1", cell]), "y": np.array(["0", "1"])}
    with pytest.raises(TaskError, match=f"column 'a' has '{cell}' in row 2"):
        own_table.encode(table, Roles(label="y"), "t")
