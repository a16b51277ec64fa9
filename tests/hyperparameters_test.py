"""Hyperparameters: what is checked when a record is made."""

import inspect
import math
import pathlib
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_algos.hyperparameters import (
    MAX_INTEGER,
    Form,
    HyperparameterError,
    Interval,
    checked,
    declared,
    hparam,
    instance,
    record,
)


@record
class Record:
    """A record.

    Attributes:
      rate: A rate.
    """

    rate: Annotated[float, hparam(above=0, symbol="eta")] = 0.1
    steps: Annotated[int, hparam(low=1, high=9)] = 1
    limit: Annotated[int | None, hparam(low=1)] = None
    kind: Annotated[Literal["a", "b"], hparam()] = "a"
    on: Annotated[bool, hparam()] = False
    words: Annotated[Sequence[Literal["x", "y"]], hparam()] = ("x",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0.0}, r"rate=0.0 is not valid: expected a number > 0\."),
        ({"rate": math.nan}, r"rate=nan is not valid: expected a number > 0\."),
        ({"rate": "1"}, r"rate='1' is not valid"),
        ({"rate": True}, r"rate=True is not valid"),
        ({"steps": 10}, r"steps=10 is not valid: expected an integer in \[1, 9\]\."),
        ({"steps": 2.0}, r"steps=2.0 is not valid: expected an integer"),
        ({"limit": 0}, r"limit=0 is not valid: expected an integer >= 1\."),
        ({"rate": np.True_}, r"rate=np.True_ is not valid: expected a number"),
        ({"rate": np.ones(1)}, r"rate=array\(\[1.\]\) is not valid"),
        ({"rate": 10**400}, r"rate=1000.* \(401 characters\) is not valid"),
        ({"steps": np.True_}, r"steps=np.True_ is not valid: expected an integer"),
        ({"steps": np.float64(2)}, r"steps=np.float64\(2.0\) is not valid"),
        ({"limit": 10**400}, r"limit=1000.* \(401 characters\) .*>= 1 and at most"),
        ({"limit": -(10**5000)}, r"limit=an integer of 16610 bits is not valid"),
        ({"limit": 2**31}, r"an integer >= 1 and at most 2147483647\."),
        ({"on": 1}, r"on=1 is not valid: expected True or False"),
        ({"kind": "c"}, r"kind='c' is not valid: expected one of a, b\."),
        (
            {"words": ("x", "z")},
            r"words='x,z' is not valid: expected a list of x, y, e",
        ),
        ({"words": ("x", "x")}, r"words='x,x' is not valid"),
        ({"words": "x"}, r"words='x' is not valid"),
    ],
)
def test_a_bad_value_is_named_with_what_is_expected(values, message):
    with pytest.raises(HyperparameterError, match=message):
        Record(**values)


@pytest.mark.parametrize(
    "value", [np.int8(3), np.uint64(3), np.float16(3), np.float32(3), np.float64(3)]
)
def test_numbers_of_numpy_become_pythons(value):
    record = Record(rate=value)
    assert record.rate == 3.0 and type(record.rate) is float
    if isinstance(value, np.integer):
        record = Record(steps=value, limit=value)
        assert record.steps == record.limit == 3
        assert type(record.steps) is type(record.limit) is int
    assert Record(on=np.True_).on is True


def test_integers_go_as_far_as_tensorflow_counts():
    assert Record(limit=MAX_INTEGER).limit == 2**31 - 1


def test_a_long_value_is_shown_by_its_beginning():
    with pytest.raises(HyperparameterError) as error:
        Record(kind="a" * 5000)
    shown = "'" + "a" * 79
    assert str(error.value).startswith(f"kind={shown}... (5002 characters) is not")
    assert len(str(error.value)) < 200


def test_an_integer_is_a_number_and_none_is_no_limit():
    record = Record(rate=2, limit=None)
    assert type(record.rate) is float and record.limit is None


@given(
    low=st.floats(-10, 10),
    width=st.floats(0.1, 10),
    share=st.floats(0, 1),
    low_open=st.booleans(),
    high_open=st.booleans(),
)
def test_an_interval_holds_its_inside_and_its_closed_ends(
    low, width, share, low_open, high_open
):
    interval = Interval(low, low + width, low_open, high_open)
    inside = low + share * width
    if low < inside < low + width:
        assert inside in interval
    assert (low in interval) is not low_open
    assert (low + width in interval) is not high_open
    assert low - 1e-3 not in interval and low + width + 1e-3 not in interval
    for never in (math.inf, -math.inf, math.nan, 10**400, -(10**400)):
        assert never not in interval


def test_a_list_is_words_and_a_flag_names_them_with_commas():
    words = declared(Record)["words"]
    assert Record(words=["y", "x"]).words == ("y", "x")
    assert words.parse("y,x") == ("y", "x") and words.parse("none") == ()
    assert words.format(("y", "x")) == "y,x" and words.format(()) == "none"


def test_a_flag_says_that_an_optional_number_is_none():
    found = declared(Record)
    assert found["limit"].parse("none") is None and found["limit"].parse(3) == 3
    assert found["limit"].describe().endswith("(>= 1 or none)")
    steps = found["steps"]
    with pytest.raises(
        HyperparameterError, match="steps='none' is not valid: .*integer"
    ):
        steps.checked(steps.parse("none"))


def _of_no_kind(text):
    raise HyperparameterError("kind", text, "a kind")


@record
class Forms:
    """Texts.

    Attributes:
      kind: What is done.
      path: Where.
    """

    kind: Annotated[
        str | None, hparam(form=Form("(a|b):.*", "a:X or b:X"), check=_of_no_kind)
    ] = None
    path: Annotated[str | None, hparam()] = None


def test_a_text_of_another_form_is_refused_before_it_is_checked():
    kind = declared(Forms)["kind"]
    with pytest.raises(HyperparameterError, match="'ab:1' is not valid: .* a:X or b:X"):
        kind.checked("ab:1")
    with pytest.raises(HyperparameterError, match="'a:1' is not valid: .* a kind"):
        kind.checked("a:1")


def test_none_unsets_a_text_of_a_form_but_is_a_path():
    fields = declared(Forms)
    assert fields["kind"].checked(fields["kind"].parse("none")) is None
    assert fields["path"].parse("none") == "none"


@checked
def build(model, *, rate: Annotated[float, hparam(above=0)] = 0.1, n: int = 2):
    """Builds nothing."""
    return model, rate, n


def test_a_function_checks_what_its_signature_declares():
    assert build("m", rate=np.float32(0.5)) == ("m", 0.5, 2)
    assert build("m") == ("m", 0.1, 2)
    with pytest.raises(HyperparameterError, match="rate=0 is not valid: expected a n"):
        build("m", rate=0)
    with pytest.raises(TypeError, match=r"build\(\) missing 1 required positional"):
        build()
    assert list(inspect.signature(build).parameters) == ["model", "rate", "n"]


def test_a_declaration_is_the_annotation_and_the_default():
    assert list(declared(build)) == ["rate"]
    rate = declared(build)["rate"]
    assert (rate.kind, rate.default, rate.valid) == (
        float,
        0.1,
        Interval(0, low_open=True),
    )
    limit = declared(Record)["limit"]
    assert limit.is_optional and limit.kind is int
    assert declared(Record)["rate"].symbol == "eta"


@record
class _Texts:
    """A record whose annotations are texts, as those of `from __future__` are."""

    rate: "Annotated[float, hparam(above=0)]" = 0.1
    limit: "Annotated[int, hparam(low=1)] | None" = None


def test_annotations_may_be_texts_and_none_may_stand_outside():
    fields = declared(_Texts)
    assert list(fields) == ["rate", "limit"]
    assert fields["limit"].is_optional and not fields["rate"].is_optional
    with pytest.raises(HyperparameterError, match="rate=0"):
        _Texts(rate=0.0)
    with pytest.raises(HyperparameterError, match="limit=0"):
        _Texts(limit=0)
    assert _Texts(limit=None).limit is None


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[int | float, hparam()],
        Annotated[Literal[1, 2], hparam()],
        Annotated[list[int], hparam()],
        Annotated[Sequence[int], hparam()],
        Annotated[tuple[int, ...], hparam()],
        Annotated[bytes | None, hparam()],
    ],
)
def test_kinds_that_flags_cannot_have_are_refused_by_the_arguments_name(annotation):
    def build(x):
        pass

    build.__annotations__["x"] = annotation
    with pytest.raises(TypeError, match="^x: an hparam is an int, a float, a bool"):
        checked(build)


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        (Interval(), ""),
        (Interval(high=1.0), "<= 1"),
        (Interval(high=1.0, high_open=True), "< 1"),
        (Interval(low=0.0), ">= 0"),
        (Interval(low=0.0, high=1.0, low_open=True), "in (0, 1]"),
    ],
)
def test_an_interval_is_shown_by_its_ends(interval, shown):
    assert str(interval) == shown


def test_a_number_without_bounds_is_a_number():
    @checked
    def build(x: Annotated[float, hparam()] = 0.0):
        return x

    assert build(-3) == -3.0
    with pytest.raises(HyperparameterError, match=r"x='a' .*: expected a number\.$"):
        build("a")
    assert declared(build)["x"].describe() == " (a number)"


def test_a_signature_shows_the_range_and_the_symbol():
    assert repr(hparam(low=0, below=1, symbol="beta")) == "hparam('beta', in [0, 1))"
    assert repr(hparam()) == "hparam()"


_Path = Annotated[pathlib.PurePath, instance("a path")]


@checked
def move(source: _Path, target: _Path | None = None, name: str = ""):
    return source, target, name


def test_a_marked_argument_must_be_an_instance_of_its_class():
    path = pathlib.PurePath("a")
    assert move(path) == move(path, None) == (path, None, "")
    assert move(path, name=3) == (path, None, 3)
    with pytest.raises(HyperparameterError, match="^source='a' .*: expected a path.$"):
        move("a")
    with pytest.raises(HyperparameterError, match="^source=None .* expected a path"):
        move(None)
    with pytest.raises(HyperparameterError, match="^target=1 is not valid: expected a"):
        move(path, 1)
