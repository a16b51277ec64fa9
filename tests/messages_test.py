"""What goes into one-line messages."""

import logging

import pytest
import tensorflow as tf

from tff_algos import messages


def test_text_is_short_and_printable():
    assert messages.shortened("a" * 80) == "a" * 80
    assert messages.shortened("a" * 5000) == "a" * 80 + "... (5000 characters)"
    assert messages.shortened("a\x00\x1b[31m\n\u00e9") == "a\\x00\\x1b[31m\\n\u00e9"


@pytest.mark.parametrize("value", ["a", 0.1, None, -3])
def test_a_short_value_is_shown_as_python_writes_it(value):
    assert messages.shown(value) == repr(value)


def test_an_integer_that_python_does_not_write_is_shown_by_its_size():
    assert messages.shown(10**5000) == "an integer of 16610 bits"
    assert messages.shown(10**400) == "1" + "0" * 79 + "... (401 characters)"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("of\nmany\tlines"), "of many lines"),
        (ValueError(), "ValueError"),
        (StopIteration(), "StopIteration"),
        (
            tf.errors.InvalidArgumentError(
                None, None, "At node x\nwith iterator: A::B[0]: bad\n [[{{node x}}]]"
            ),
            "bad",
        ),
        (
            tf.errors.NotFoundError(None, None, "{{function_node f}} no file; [[y]]"),
            "no file;",
        ),
    ],
)
def test_an_error_is_its_reason(error, expected):
    assert messages.one_line(error) == expected


def test_only_messages_with_the_text_are_not_logged(caplog):
    logger = logging.getLogger("some_library")
    with messages.not_logged("no news", logger):
        logger.warning("This is no news: %d", 3)
        logger.warning("This is.")
    logger.warning("This is no news.")
    assert caplog.messages == ["This is.", "This is no news."]


def test_an_unknown_name_is_told_a_similar_one_if_there_is_one():
    names = ["emnist", "tiny_imagenet"]
    assert messages.unknown("task", "emnits", names) == (
        "--task=emnits is unknown, did you mean emnist? One of: emnist, tiny_imagenet."
    )
    assert messages.unknown("task", "nothing", names) == (
        "--task=nothing is unknown. One of: emnist, tiny_imagenet."
    )
