"""Which tests run when."""

import pytest

from tests.testing.tiers import _exists, tiers


def test_quick_tests_have_no_marker():
    assert tiers(["a.py::t", "a.py::u[1]"], {"a.py::u[1]": 0.6}) == {}


def test_what_repeats_a_claim_that_has_a_quick_case_is_slow():
    names = ["a.py::t[0]", "a.py::t[1]", "a.py::t[2]"]
    assert tiers(names, {"a.py::t[1]": 3.0}) == {"a.py::t[1]": "slow"}


def test_the_quickest_case_of_a_claim_without_a_quick_one_is_for_ci():
    seconds = {"a.py::t[x]": 14.0, "a.py::t[y]": 12.0, "a.py::u": 15.0, "a.py::v": 16.0}
    assert tiers(list(seconds), seconds) == {
        "a.py::t[x]": "slow",
        "a.py::t[y]": "extended",
        "a.py::u": "extended",
        "a.py::v": "slow",
    }


@pytest.mark.parametrize("name", ["gone.py::t"])
def test_what_is_recorded_of_tests_that_are_gone_does_not_matter(name):
    assert tiers([], {name: 100.0}) == {}


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("tests/tiers_test.py::test_quick_tests_have_no_marker", True),
        ("tests/tiers_test.py::test_quick_tests_have_no_marker[a::b]", True),
        ("tests/tiers_test.py::test_quick_tests", False),
        ("tests/gone_test.py::test_quick_tests_have_no_marker", False),
    ],
)
def test_durations_are_kept_of_tests_that_exist(name, exists):
    assert _exists(name) is exists
