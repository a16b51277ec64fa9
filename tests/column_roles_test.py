"""Roles of columns: from flags, and only those that a table has."""

import pathlib

import pytest

from tff_algos import column_roles
from tff_algos.column_roles import Roles
from tff_algos.hyperparameters import HyperparameterError

COLUMNS = ("age", "job", "site", "ill")


def test_flags_name_columns_as_a_line_of_a_csv_file_does():
    found = column_roles.from_flags("ill", "site", 'age, "pay, gross"', "job")
    assert found == Roles(
        label="ill",
        client_column="site",
        features=("age", "pay, gross"),
        categories=("job",),
    )
    assert column_roles.from_flags("ill", None, None, None) == Roles(label="ill")


def test_lists_name_columns_too():
    found = column_roles.from_flags("ill", None, ["age", "job"], ("job",))
    assert found == Roles(label="ill", features=("age", "job"), categories=("job",))
    with pytest.raises(
        HyperparameterError, match="features=3 .* a column's name or a l"
    ):
        column_roles.from_flags("ill", None, 3, None)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (Roles(label="ill"), ["age", "job", "site"]),
        (Roles(label="ill", client_column="site"), ["age", "job"]),
        (Roles(label="ill", features=("job", "age")), ["job", "age"]),
        (Roles(label="ill", features=("site",), client_column="job"), ["site"]),
    ],
)
def test_features_are_all_other_columns_or_those_that_are_named(roles, expected):
    assert column_roles.chosen(roles, COLUMNS, "t") == expected


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            Roles(label="income"),
            "label='income' .* expected a column of t: age, job, site, ill",
        ),
        (Roles(label="ill", client_column="who"), "client_column='who' .* column of t"),
        (
            Roles(label="ill", client_column="ill"),
            "client_column='ill' .* another colum",
        ),
        (Roles(label="ill", features=("wage",)), "features='wage' .* a column of t"),
        (
            Roles(label="ill", features=("age", "ill")),
            "features='ill' is not valid: expected columns out of age, job, site",
        ),
        (
            Roles(label="ill", features=("age", "age")),
            "features='age' is not valid: expected each column once",
        ),
        (
            Roles(label="ill", features=("age",), categories=("job",)),
            "categories='job' is not valid: expected columns out of age",
        ),
        (Roles(label="ill", categories=("work",)), "categories='work' .* column of t"),
    ],
)
def test_roles_that_do_not_fit_are_named(roles, message):
    with pytest.raises(HyperparameterError, match=message):
        column_roles.chosen(roles, COLUMNS, "t")


def test_arrays_that_are_not_there_are_named():
    path = pathlib.Path("a.npz")
    column_roles.check_array("label", "y", "y", ["x", "y"], path)
    with pytest.raises(
        HyperparameterError,
        match=r"^label is missing: a.npz has no array 'y', the default; .* one of x, z\.$",
    ):
        column_roles.check_array("label", "y", "y", ["x", "z"], path)
    with pytest.raises(HyperparameterError, match="label='w' .* array of a.npz: x, z"):
        column_roles.check_array("label", "w", "y", ["x", "z"], path)


def test_many_names_are_listed_in_part_and_odd_ones_so_that_they_can_be_read():
    many = column_roles.listed([f"c{number}" for number in range(23)])
    assert many.startswith("c0, c1, ") and many.endswith("c19, and 3 more")
    assert column_roles.listed(["a, b", "", "c"]) == "\"a, b\", '', c"
