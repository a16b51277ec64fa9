"""The benchmark of aggregators: its methods and its table.

No time is asserted.
"""

import numpy as np
import tensorflow_federated as tff

from benchmarks import aggregation
from benchmarks.aggregation import Measured, Round
from tests.testing import problems
from tff_algos import execution

CLIENTS = problems.clients(sizes=(6, 4, 5, 6))


def round_of(name):
    """One round of a method on a small model."""
    process = aggregation.METHODS[name].build(
        problems.linear_model(np.float32), tff.learning.optimizers.build_sgdm(0.05)
    )
    data = [client.batches(2, 1, np.float32) for client in CLIENTS]
    with execution.in_process_context():
        return problems.run(process, data)[0]


def test_blocks_are_min_norm_and_the_others_are_not_the_mean():
    found = {name: round_of(name) for name in aggregation.METHODS}
    least = found.pop("min norm")
    for name in list(found):
        if name.startswith("min norm"):
            np.testing.assert_allclose(found.pop(name), least, atol=1e-6)
    mean = found.pop("mean")
    for weights in (least, *found.values()):
        assert np.max(np.abs(weights - mean)) > 1e-3


def test_clients_are_made_up_and_have_all_their_examples():
    sizes = [len(y) for _, y in client_batches(0)]
    assert sizes == [20] * 5
    first, second = (client_batches(number)[0][0] for number in (0, 1))
    assert np.max(np.abs(first - second)) > 0.5


def client_batches(number):
    return list(aggregation.client_data(number, 100).as_numpy_iterator())


def test_the_table_compares_with_the_mean_and_names_what_died():
    def pairs(means, *own):
        return [
            (Round(*mean), Round(*each)) for mean, each in zip(means, own, strict=True)
        ]

    # The median of seconds and CPU seconds, the first of the mean's memory.
    whole = [(1.0, 4.0, 20.0), (2.0, 3.0, 510.0), (1.0, 1.0, 530.0)]
    short = [(0.5, 0.0, 0.0), (0.4, 0.0, 0.0), (0.6, 0.0, 0.0)]
    min_norm = Measured(
        pairs(whole, (1.1, 6.0, 500.0), (2.4, 3.3, 520.0), (0.5, 1.2, 510.0)),
        pairs(short, (0.45, 0.0, 0.0), (0.45, 0.0, 0.0), (0.7, 0.0, 0.0)),
    )
    measured = {"min norm": min_norm, "q-fair": None}
    rows = aggregation.make_table(10, measured).splitlines()[2:]
    mean, least, q_fair = ([c.strip() for c in row.split("|")[1:-1]] for row in rows)
    assert mean == ["mean", "1.00", "3.00", *[""] * 4, "20.0"]
    assert least[:3] == ["min norm", "1.10", "3.30"]
    assert least[3:] == [
        "0.05 (-0.05 to 0.10)",
        "5.0",
        "0.10 (-0.50 to 0.40)",
        "10.0",
        "510",
    ]
    assert q_fair == ["q-fair", *["died"] * 7]


def test_where_all_died_the_table_says_so():
    table = aggregation.make_table(10, {"q-fair": None})
    assert table.count("died") == 14
