"""Which tests run when."""

import pytest

from tests.tiers import tiers


def test_quick_tests_have_no_marker():
    assert tiers(["a.py::t", "a.py::u[1]"], {"a.py::u[1]": 2.0}) == {}


def test_markers_follow_the_seconds():
    seconds = {"a.py::t[1]": 3.0, "a.py::t[2]": 9.0}
    names = ["a.py::t[0]", "a.py::t[1]", "a.py::t[2]"]
    assert tiers(names, seconds) == {"a.py::t[1]": "extended", "a.py::t[2]": "slow"}


def test_the_quickest_case_of_a_slow_claim_is_for_ci():
    seconds = {"a.py::t[x]": 20.0, "a.py::t[y]": 12.0, "a.py::u": 24.0, "a.py::v": 26.0}
    assert tiers(list(seconds), seconds) == {
        "a.py::t[x]": "slow",
        "a.py::t[y]": "extended",
        "a.py::u": "extended",
        "a.py::v": "slow",
    }


@pytest.mark.parametrize("name", ["gone.py::t"])
def test_what_is_recorded_of_tests_that_are_gone_does_not_matter(name):
    assert tiers([], {name: 100.0}) == {}
