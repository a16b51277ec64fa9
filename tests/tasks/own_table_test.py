"""Tables: columns that are numbers, words, labels and clients."""

import tracemalloc

import numpy as np
import pytest

from tasks import own_table
from tasks.own_table import Table
from tasks.task import TaskError
from tff_algos.column_roles import Roles
from tff_algos.hyperparameters import HyperparameterError

TABLE = Table(
    name="t",
    columns={
        "age": np.array(["31", "4.5", "20"]),
        "job": np.array(["cook", "nurse", "cook"]),
        "site": np.array(["x", "y", "x"]),
        "ill": np.array(["no", "yes", "no"]),
    },
)


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
    assert {name: list(column) for name, column in found.columns.items()} == {
        "age": ["31", "4"],
        "ill": ["yes", "no"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "has no rows below its first line"),
        ("a,a\n1,2\n", "has two columns 'a'"),
        ("a,b\n1,2\n1\n", "line 3 has 1 cells, expected 2"),
    ],
)
def test_other_files_are_refused(text, message, write):
    with pytest.raises(TaskError, match=message):
        own_table.read_csv(write(text))


def test_columns_without_a_name_are_no_features(write):
    table = own_table.read_csv(write(",a,y\n0,5,u\n1,6,v\n"))
    message = (
        r"people.csv: column 1 has no name \(pandas writes its index there\): name it, "
        r"save with index=False, or choose --features\.$"
    )
    for features in (None, ("a", "")):
        with pytest.raises(TaskError, match=message):
            own_table.encode(table, Roles(label="y", features=features))
    x, _, _ = own_table.encode(table, Roles(label="y", features=("a",)))
    np.testing.assert_array_equal(x, [[5], [6]])
    with pytest.raises(HyperparameterError, match="people.csv: '', a, y"):
        own_table.encode(table, Roles(label="z"))
    last = own_table.read_csv(write("a,y,\n5,u,\n"))
    with pytest.raises(TaskError, match="column 3 has no name: name it or choose --fe"):
        own_table.encode(last, Roles(label="y"))


def test_several_columns_without_a_name_may_be_left_out(write):
    table = own_table.read_csv(write("a,y,,\n5,u,1,2\n6,v,3,4\n"))
    x, _, _ = own_table.encode(table, Roles(label="y", features=("a",)))
    np.testing.assert_array_equal(x, [[5], [6]])
    with pytest.raises(TaskError, match="column 3 has no name: name it or choose --fe"):
        own_table.encode(table, Roles(label="y"))


@pytest.mark.parametrize("dtype", [np.str_, np.bytes_])
def test_text_and_bytes_mean_the_same(dtype):
    table = Table(
        name="t",
        columns={name: each.astype(dtype) for name, each in TABLE.columns.items()},
    )
    roles = Roles(label="ill", client_column="site", categories=("job",))
    assert own_table.feature_names(table, roles) == ["age", "job=cook", "job=nurse"]
    x, y, _ = own_table.encode(table, roles)
    np.testing.assert_array_equal(x, own_table.encode(TABLE, roles)[0])
    assert list(y) == ["no", "yes", "no"]


def test_columns_become_features_labels_and_clients():
    roles = Roles(label="ill", client_column="site", categories=("job",))
    x, y, clients = own_table.encode(TABLE, roles)
    np.testing.assert_array_equal(x, [[31, 1, 0], [4.5, 0, 1], [20, 1, 0]])
    assert list(y) == ["no", "yes", "no"] and list(clients) == ["x", "y", "x"]
    assert x.dtype == np.float64
    assert own_table.feature_names(TABLE, roles) == ["age", "job=cook", "job=nurse"]


def test_a_table_without_rows_is_refused():
    empty = Table(name="t", columns={name: np.array([]) for name in ("age", "ill")})
    with pytest.raises(TaskError, match=r"^t has no examples\.$"):
        own_table.encode(empty, Roles(label="ill", categories=("age",)))


def test_options_that_do_not_fit_are_named():
    message = "label='income' .* expected a column of t: age, job, site, ill"
    with pytest.raises(HyperparameterError, match=message):
        own_table.encode(TABLE, Roles(label="income"))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "",
            r"people.csv: column 'a' is empty in line 4: fill it in or remove the row",
        ),
        ("nan", "column 'a' has 'nan', a missing value, in line 4: fill it in"),
        ("NA", "column 'a' has 'NA', a missing value, in line 4: fill it in"),
        ("inf", r"column 'a' has 'inf' in line 4, expected finite numbers\.$"),
        ("1_1", r"column 'a' has '1_1' in line 4, expected finite numbers; --categor"),
        ("1e99", r"column 'a' has '1e99' in line 4, expected finite numbers\.$"),
        (
            "x",
            (
                "column 'a' has 'x' in line 4, expected finite numbers; --categories takes "
                "columns of words, --client_column the one that names clients, --features"
            ),
        ),
    ],
)
def test_cells_that_are_no_finite_numbers_are_named(cell, message, write):
    path = write(f'a,y\n1,"0\n"\n{cell},1\n')
    with pytest.raises(TaskError, match=message):
        own_table.encode(own_table.read_csv(path), Roles(label="y"))


@pytest.mark.parametrize("cell", ["22,66", "1,234", "1,234,567.8", "1.234.567,8"])
def test_numbers_with_commas_are_told_how_to_be_written(cell, write):
    path = write(f"a;y\n{cell};1\n")
    message = (
        f"column 'a' has '{cell}' in line 2, expected finite numbers; write decimals "
        r"with a point and no thousands separators\.$"
    )
    with pytest.raises(TaskError, match=message):
        own_table.encode(own_table.read_csv(path), Roles(label="y"))


def test_rows_of_a_table_from_python_count_from_0():
    message = (
        r"t: column 'job' has 'cook' in row 0 \(counting from 0\), expected finite "
        "numbers; categories= takes columns of words, client_column= the one"
    )
    with pytest.raises(TaskError, match=message):
        own_table.encode(TABLE, Roles(label="ill"))


def test_lines_are_those_that_an_editor_shows(write):
    table = own_table.read_csv(write('a,y\r\n\r\n"1\r\n1",0\r\n2,1\r\n\r\n3,.5'))
    assert [table.place(row) for row in range(3)] == ["line 3", "line 5", "line 7"]
    with pytest.raises(TaskError, match="line 7 has the label 0.5, expected classes"):
        own_table.encode(table, Roles(label="y"))


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[s]"])
def test_times_are_no_numbers(kind):
    times = np.arange(2).astype(kind)
    table = Table(name="t", columns={"when": times, "y": np.arange(2)})
    with pytest.raises(TaskError, match="'when' is of type .* in features=") as caught:
        own_table.encode(table, Roles(label="y"))
    assert str(times.dtype) in str(caught.value)
    x, _, _ = own_table.encode(table, Roles(label="y", categories=("when",)))
    np.testing.assert_array_equal(x, np.eye(2))


def test_complex_numbers_are_refused():
    table = Table(name="t", columns={"z": np.array([1j, 2.0]), "y": np.arange(2)})
    message = (
        "^t: column 'z' is of type complex128, expected real numbers: replace it by "
        "real numbers, such as absolute values, or name the columns to learn from in "
        "features="
    )
    with pytest.raises(TaskError, match=message):
        own_table.encode(table, Roles(label="y"))


def test_a_column_that_nobody_asks_for_takes_no_memory_of_an_array(write):
    long = "x" * 100_000
    lines = "".join(f"{k},{k % 2},n\n" for k in range(300))
    table = own_table.read_csv(write(f"a,y,note\n{lines}3,1,{long}\n"))
    tracemalloc.start()
    try:
        found, _, _ = own_table.encode(table, Roles(label="y", features=("a",)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.shape == (301, 1)
    # The notes alone would take 120 MB.
    assert peak < 10e6
    assert table.columns["note"][-1] == long
