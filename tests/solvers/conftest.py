"""What the tests of solvers share."""

import pytest
import tensorflow as tf


@pytest.fixture
def untraced():
    """Has changed limits count, which a function that was traced before ignores."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
