"""A stage: by how many examples its clients weigh, and what their data hold."""

import attrs

from tests.testing.remembering_processes import process
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments.stage import Stage


def stage_of(name, **batches):
    return Stage(
        name=name,
        process=process(name),
        num_rounds=1,
        clients_per_round=2,
        batches=BatchSpec(batch_size=4, **batches),
    )


def test_a_client_weighs_by_the_examples_that_its_batches_take():
    assert stage_of("fedavg", num_epochs=3).count_examples("0", 7) == 7
    bounded = stage_of("fedavg", num_steps=2, max_elements=5)
    assert bounded.count_examples("0", 7) == 5


def test_a_client_may_weigh_by_another_number():
    stage = attrs.evolve(
        stage_of("fedavg", num_epochs=1), num_examples=lambda name: 10 * int(name)
    )
    assert stage.count_examples("3", 7) == 30


def test_its_clients_data_hold_what_the_process_takes():
    assert stage_of("fedavg", num_epochs=1).client_data_fields == []
    assert stage_of("mifa", num_epochs=1).client_data_fields == [
        "examples",
        "client_index",
    ]
