"""Divisions among clients: every example once, by texts that say how."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tasks import partition
from tasks.partition import Dirichlet, Iid, PartitionOption, Shards
from tasks.task import TaskError
from tff_algos.hyperparameters import HyperparameterError, declared, record


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("iid:10", Iid(num_clients=10)),
        ("shards:2", Shards(shards_per_client=2, num_clients=100)),
        ("shards:5:40", Shards(shards_per_client=5, num_clients=40)),
        ("dirichlet:0.1", Dirichlet(concentration=0.1, num_clients=100)),
        ("dirichlet:1e-3:20", Dirichlet(concentration=1e-3, num_clients=20)),
    ],
)
def test_a_text_and_its_spec_name_each_other(text, spec):
    assert partition.parse(text) == spec
    assert partition.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected iid:N, shards:K"),
        ("iid", "expected iid:N, shards:K"),
        ("iid:10:10", "expected iid:N, shards:K"),
        ("random:3", "expected iid:N, shards:K"),
        ("shards:2:3:4", "expected iid:N, shards:K"),
        ("dirichlet", "expected iid:N, shards:K"),
        (7, "expected iid:N, shards:K"),
        ("iid:0", "with N an integer >= 1"),
        ("iid:-5", "with N an integer >= 1"),
        ("iid:1e2", "with N an integer >= 1"),
        ("iid: 5", "with N an integer >= 1"),
        ("shards:0", "with K an integer >= 1"),
        ("shards:1.5:10", "with K an integer >= 1"),
        ("shards:2:", "with N an integer >= 1"),
        ("dirichlet:0", "with ALPHA a number in (0, 1e+06]"),
        ("dirichlet:-1", "with ALPHA a number in (0, 1e+06]"),
        ("dirichlet:nan", "with ALPHA a number in (0, 1e+06]"),
        ("dirichlet:inf", "with ALPHA a number in (0, 1e+06]"),
        ("dirichlet:much", "with ALPHA a number in (0, 1e+06]"),
        ("dirichlet:1:x", "with N an integer >= 1"),
    ],
)
def test_a_bad_text_names_the_flag_the_value_and_the_forms(text, expected):
    with pytest.raises(HyperparameterError) as error:
        partition.parse(text)
    message = str(error.value)
    assert message.startswith(f"partition={text!r} is not valid")
    assert expected in message and partition.FORMS in message and "\n" not in message


def test_an_option_is_checked_when_it_is_set():
    @record
    class Options:
        partition: PartitionOption = "shards:2"

    assert Options().partition == "shards:2"
    with pytest.raises(HyperparameterError, match="partition='shards:0'"):
        Options(partition="shards:0")
    assert declared(Options)["partition"].kind is str


_SPECS = st.one_of(
    st.builds(Iid, num_clients=st.integers(1, 40)),
    st.builds(
        Shards, shards_per_client=st.integers(1, 4), num_clients=st.integers(1, 40)
    ),
    st.builds(
        Dirichlet,
        concentration=st.floats(1e-12, 1e6),
        num_clients=st.integers(1, 40),
    ),
)
_LABELS = st.builds(
    lambda n, classes, seed: np.random.default_rng(seed).integers(0, classes, n),
    st.integers(160, 600),
    st.integers(1, 12),
    st.integers(0, 1000),
)
_FEW = hypothesis.settings(max_examples=60, deadline=None)


@_FEW
@hypothesis.given(_LABELS, _SPECS, st.integers(0, 3))
def test_every_example_has_one_client_and_every_client_an_example(labels, spec, seed):
    parts = partition.divide(labels, spec, seed)
    assert len(parts) == spec.num_clients
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(
        np.sort(np.concatenate(parts)), np.arange(len(labels))
    )
    for part in parts:
        assert part.dtype == np.int64 and (np.diff(part) > 0).all()


@_FEW
@hypothesis.given(_LABELS, _SPECS, st.integers(0, 3))
def test_a_division_is_a_function_of_labels_spec_and_seed(labels, spec, seed):
    one, again = (partition.divide(labels, spec, seed) for _ in range(2))
    for a, b in zip(one, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("text", ["iid:10", "shards:2:10", "dirichlet:1:10"])
def test_another_seed_is_another_division(text):
    labels = np.arange(300) % 10
    one, other = (
        partition.divide(labels, partition.parse(text), seed) for seed in (0, 1)
    )
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, other))


@_FEW
@hypothesis.given(_LABELS, st.integers(1, 150))
def test_iid_shares_are_equal(labels, num_clients):
    parts = partition.divide(labels, Iid(num_clients=num_clients), 0)
    sizes = {len(part) for part in parts}
    assert sizes <= {len(labels) // num_clients, len(labels) // num_clients + 1}


def test_iid_shares_mix_the_labels():
    labels = np.repeat(np.arange(10), 1000)
    for part in partition.divide(labels, Iid(num_clients=10), 0):
        assert np.bincount(labels[part], minlength=10).min() > 60


@_FEW
@hypothesis.given(
    st.integers(1, 10), st.integers(1, 4), st.integers(1, 20), st.integers(0, 3)
)
def test_shards_bound_the_labels_of_a_client(classes, shards, num_clients, seed):
    per_class = shards * num_clients
    labels = np.random.default_rng(seed).permutation(
        np.repeat(np.arange(classes), per_class)
    )
    spec = Shards(shards_per_client=shards, num_clients=num_clients)
    for part in partition.divide(labels, spec, seed):
        # A shard has `classes` examples: two labels at most, if each has as many.
        assert len(part) == shards * classes
        if per_class >= classes:
            assert len(np.unique(labels[part])) <= 2 * shards


def test_shards_that_fit_the_labels_have_one_label_each():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = partition.divide(labels, partition.parse("shards:2"), 0)
    assert {len(part) for part in parts} == {60}
    num_labels = [len(np.unique(labels[part])) for part in parts]
    assert set(num_labels) == {1, 2} and np.mean(num_labels) > 1.8


def test_shards_are_cut_in_the_order_of_the_examples():
    labels = np.zeros(12, np.int64)
    for part in partition.divide(labels, partition.parse("shards:1:4"), 0):
        np.testing.assert_array_equal(np.diff(part), 1)


def test_the_smaller_alpha_the_fewer_labels_a_client_has():
    labels = np.arange(10_000) % 10

    def largest_share(text):
        parts = partition.divide(labels, partition.parse(text), 0)
        return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])

    shares = [largest_share(f"dirichlet:{alpha}:20") for alpha in (0.01, 0.5, 1e6)]
    assert shares[0] > 0.6 > shares[1] > 0.2 > shares[2]
    assert shares[2] == pytest.approx(0.1, abs=0.02)


def test_dirichlet_gives_every_client_two_examples_first():
    labels = np.zeros(1000, np.int64)
    parts = partition.divide(labels, partition.parse("dirichlet:1e-6:50"), 0)
    sizes = sorted(map(len, parts))
    # All but one get nothing of the rest at so small an alpha.
    assert sizes[:-1] == [2] * 49 and sizes[-1] == 902


@pytest.mark.parametrize(
    ("text", "needed"),
    [("iid:11", "11 .*one for each client"), ("shards:2:6", "12 .*one for each shard")]
    + [("dirichlet:1:6", "12 .*2 for each client"), ("shards:2", "200 ")],
)
def test_too_few_examples_are_refused(text, needed):
    with pytest.raises(TaskError, match=f"--partition={text}.* needs {needed}.*has 10"):
        partition.divide(np.zeros(10, np.int64), partition.parse(text), 0)


@_FEW
@hypothesis.given(_LABELS, st.integers(1, 500), st.integers(1, 60), st.integers(0, 3))
def test_a_local_test_set_follows_the_clients_labels(test_labels, m, size, seed):
    rng = np.random.default_rng(seed)
    client = rng.choice(np.unique(test_labels), m)
    drawn = partition.local_test(client, test_labels, size, seed)
    assert 1 <= len(drawn) <= size
    assert len(np.unique(drawn)) == len(drawn)
    for label in np.unique(np.concatenate([client, test_labels])):
        intended = size * np.mean(client == label)
        available = np.sum(test_labels == label)
        found = np.sum(test_labels[drawn] == label)
        assert found == available < intended or abs(found - intended) < 1
    np.testing.assert_array_equal(
        drawn, partition.local_test(client, test_labels, size, seed)
    )


def test_a_local_test_set_has_hand_computed_numbers():
    client = np.repeat([0, 1, 2], [5, 3, 2])
    test_labels = np.arange(90) % 3
    drawn = partition.local_test(client, test_labels, 12, 0)
    # 6, 3.6 and 2.4: the largest remainder is label 1's.
    np.testing.assert_array_equal(np.bincount(test_labels[drawn]), [6, 4, 2])


def test_local_test_sets_have_their_share_and_differ():
    train_labels, test_labels = np.arange(600) % 3, np.arange(100) % 3
    parts = partition.divide(train_labels, Iid(num_clients=8), 0)
    sets = partition.local_tests(parts, train_labels, test_labels, 0)
    assert [len(one) for one in sets] == [12] * 8
    assert len({one.tobytes() for one in sets}) == 8
    others = partition.local_tests(parts, train_labels, test_labels, 1)
    assert any((a != b).any() for a, b in zip(sets, others, strict=True))


def test_a_local_test_set_is_never_empty():
    labels = np.arange(30) % 3
    parts = partition.divide(labels, Iid(num_clients=30), 0)
    sets = partition.local_tests(parts, labels, np.arange(3), 0)
    for part, one in zip(parts, sets, strict=True):
        np.testing.assert_array_equal(one, labels[part])
