"""The flow of values between placements: broadcasts, zips, selections, aggregations."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tff_algos import execution

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
SELECT_KEYS = tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS)

same = equivalence.assert_same_in_both


def test_aggregations_may_depend_on_each_other():
    @tff.tensorflow.computation(np.float32, np.float32)
    def scaled(x, total):
        return x / (1 + total)

    @tff.federated_computation(CLIENT_FLOATS)
    def repeated(x):
        totals = []
        for _ in range(4):
            total = tff.federated_sum(x)
            totals.append(total)
            x = tff.federated_map(scaled, (x, tff.federated_broadcast(total)))
        return totals, x

    same(repeated, [1.0, 2.0, 5.0])


def _select(select):
    @tff.tensorflow.computation(tff.TensorType(np.str_, [5]), np.int32)
    def pick(values, key):
        return tf.gather(values, key), key

    @tff.tensorflow.computation(tff.SequenceType((np.str_, np.int32)))
    def join(chosen):
        return chosen.reduce("", lambda text, pair: text + pair[0])

    @tff.federated_computation(
        SELECT_KEYS,
        tff.FederatedType(np.int32, tff.SERVER),
        tff.FederatedType(tff.TensorType(np.str_, [5]), tff.SERVER),
    )
    def select_and_join(keys, max_key, values):
        return tff.federated_map(join, select(keys, max_key, values, pick))

    return select_and_join


def test_clients_select_what_their_keys_ask_for():
    joined = same(
        _select(tff.federated_select), [[0, 1], [4, 0]], 5, ["a", "b", "c", "d", "e"]
    )
    assert joined == [b"ab", b"ea"]


def test_selected_elements_keep_names_that_are_not_in_order():
    @tff.tensorflow.computation(tff.TensorType(np.str_, [3]), np.int32)
    def pick(values, key):
        return collections.OrderedDict(value=tf.gather(values, key), key=key)

    @tff.tensorflow.computation(tff.SequenceType(pick.type_signature.result))
    def join(chosen):
        return chosen.reduce((0, ""), lambda s, e: (s[0] + e["key"], s[1] + e["value"]))

    @tff.federated_computation(
        SELECT_KEYS,
        tff.FederatedType(np.int32, tff.SERVER),
        tff.FederatedType(tff.TensorType(np.str_, [3]), tff.SERVER),
    )
    def select(keys, max_key, values):
        chosen = tff.federated_select(keys, max_key, values, pick)
        return tff.federated_map(join, chosen)

    # Where TFF's own runtime fails: it takes the values for the keys.
    context = equivalence.in_process()
    found = equivalence.call(context, select, [[0, 1], [2, 0]], 3, ["a", "b", "c"])
    assert [tuple(each) for each in found] == [(1, b"ab"), (2, b"ca")]


def test_secure_selection_is_refused_unless_in_the_clear():
    arguments = ([[0, 1], [4, 0]], 5, ["a", "b", "c", "d", "e"])
    secure = _select(tff.federated_secure_select)
    context = equivalence.in_process(insecure_aggregation=True)
    assert equivalence.call(context, secure, *arguments) == [b"ab", b"ea"]
    with pytest.raises(
        execution.UnsupportedComputationError, match="federated_secure_select"
    ):
        equivalence.call(equivalence.in_process(), secure, *arguments)


@tff.tensorflow.computation(np.float32)
def _half(x):
    return x / 2


def test_broadcasts_and_zips_keep_values_where_they_are_placed():
    @tff.tensorflow.computation(np.float32, np.float32)
    def product(a, b):
        return a * b

    @tff.federated_computation(CLIENT_FLOATS, tff.FederatedType(np.float32, tff.SERVER))
    def everything(x, y):
        sent = tff.federated_broadcast(y)
        zipped = tff.federated_zip((x, sent))
        products = tff.federated_map(product, zipped)
        constant = tff.federated_value(np.float32(2.0), tff.CLIENTS)
        return collections.OrderedDict(
            sent=sent,
            products=products,
            constant=constant,
            zipped=zipped,
            constants=tff.federated_map(product, (x, constant)),
            half=tff.federated_map(_half, y),
            half_sent=tff.federated_map(_half, sent),
            server=tff.federated_zip([y, tff.federated_sum(x)]),
            value=tff.federated_value(np.int32(7), tff.SERVER),
        )

    same(everything, [1.0, 2.0, 3.0], 10.0)


def test_a_mapped_function_that_uses_a_value_around_it_is_explained():
    @tff.tensorflow.computation(np.float32, np.float32)
    def product(a, b):
        return a * b

    @tff.federated_computation(np.float32, tff.SequenceType(np.float32))
    def scaled(factor, values):
        scale = tff.federated_computation(lambda x: product(factor, x), np.float32)
        return tff.sequence_map(scale, values)

    with pytest.raises(
        execution.UnsupportedComputationError,
        match=r"found one of lambda: .* cannot use values of the computation around it",
    ):
        equivalence.call(equivalence.in_process(), scaled, 2.0, [1.0])


def test_an_intrinsic_that_is_not_there_is_named():
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def secure(x):
        return tff.federated_secure_sum_bitwidth(x, 8)

    with pytest.raises(
        execution.UnsupportedComputationError,
        match="intrinsic federated_secure_sum_bitwidth.*set_in_process_context.inse",
    ):
        equivalence.call(equivalence.in_process(), secure, [1, 2])
    context = equivalence.in_process(insecure_aggregation=True)
    assert equivalence.call(context, secure, [1, 2]) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="client value"):
        equivalence.call(context, secure, [1, 1000])
