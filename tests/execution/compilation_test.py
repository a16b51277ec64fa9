"""Computations compile however deeply they are nested."""

import contextlib
import sys

import numpy as np
import tensorflow_federated as tff

from tests.testing import equivalence

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _plus_one(x):
    return x + 1


@contextlib.contextmanager
def deep_tracing():
    """TFF's tracing recurses too; the runtime must not need this."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_a_chain_of_hundreds_of_maps_compiles():
    with deep_tracing():

        @tff.federated_computation(CLIENT_FLOATS)
        def chain(x):
            for _ in range(400):
                x = tff.federated_map(_plus_one, x)
            return tff.federated_sum(x)

    assert equivalence.call(equivalence.in_process(), chain, [1.0, 2.0]) == 803.0


def test_a_chain_of_hundreds_of_calls_compiles():
    with deep_tracing():

        @tff.federated_computation(np.float32)
        def chain(x):
            for _ in range(300):
                x = _plus_one(x)
            return x

    limit = sys.getrecursionlimit()
    assert equivalence.call(equivalence.in_process(), chain, 1.0) == 301.0
    assert sys.getrecursionlimit() == limit
