"""Cohorts: functions of seed and round, uniform over clients; pooled batches."""

import gc
import weakref

import numpy as np
import pytest

from tests.testing import tiny_task
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import cohorts
from tff_algos.experiments.errors import CohortSizeError
from tff_algos.experiments.stage import Stage

IDS = [f"client {n}" for n in range(50)]


def test_a_cohort_is_a_function_of_seed_and_round():
    first = cohorts.sample_cohort(IDS, 10, seed=1, round_num=3)
    assert first == cohorts.sample_cohort(IDS, 10, seed=1, round_num=3)
    assert first != cohorts.sample_cohort(IDS, 10, seed=1, round_num=4)
    assert first != cohorts.sample_cohort(IDS, 10, seed=2, round_num=3)
    assert len(set(first)) == 10 and set(first) <= set(IDS)


def test_cohorts_are_uniform_over_clients():
    counts = dict.fromkeys(IDS, 0)
    for round_num in range(2000):
        for client_id in cohorts.sample_cohort(IDS, 5, 0, round_num):
            counts[client_id] += 1
    # 200 expected, standard deviation 13.4: five of them either way.
    assert 133 < min(counts.values()) and max(counts.values()) < 267


def test_clients_sampled_by_themselves_are_as_many_on_average_and_as_often():
    counts, sizes = dict.fromkeys(IDS, 0), []
    for round_num in range(2000):
        sampled = cohorts.sample_poisson(IDS, 5, 0, round_num)
        assert len(set(sampled)) == len(sampled)
        sizes.append(len(sampled))
        for client_id in sampled:
            counts[client_id] += 1
    # A binomial number of 50 clients, each with probability 0.1.
    assert abs(np.mean(sizes) - 5) < 5 * np.sqrt(4.5 / 2000)
    assert np.var(sizes) == pytest.approx(4.5, rel=0.2)
    assert 133 < min(counts.values()) and max(counts.values()) < 267
    assert cohorts.sample_poisson(IDS, 5, 0, 7) == cohorts.sample_poisson(IDS, 5, 0, 7)


def test_a_cohort_may_be_everyone_but_not_more():
    assert set(cohorts.sample_cohort(IDS, 50, 0, 0)) == set(IDS)
    with pytest.raises(CohortSizeError, match="--clients_per_round=51 is more than"):
        cohorts.sample_cohort(IDS, 51, 0, 0)


def test_nothing_keeps_a_task_after_its_runs():
    task = tiny_task.make.__wrapped__()
    stage = _pooled_stage(BatchSpec(batch_size=2, num_steps=1))
    cohorts.cohort_datasets(stage, task, 0, 1)
    assert cohorts.positions(task)[task.train_client_ids[1]] == 1
    assert cohorts.positions(task) is cohorts.positions(task)
    kept = weakref.ref(task)
    del task
    gc.collect()
    assert kept() is None


def _pooled_stage(batches, pooled_examples=None):
    return Stage(
        name="pooled",
        process=None,
        num_rounds=2,
        clients_per_round=None,
        batches=batches,
        pooled_examples=pooled_examples,
    )


def test_pooled_batches_take_every_example_once_before_any_twice():
    task = tiny_task.make()
    total = sum(len(task.examples(c, "train")[1]) for c in task.train_client_ids)
    stage = _pooled_stage(BatchSpec(batch_size=1, num_steps=total))

    def points_of(round_num):
        (batches,) = cohorts.cohort_datasets(stage, task, 0, round_num)
        return [tuple(x.numpy()[0]) for x, _ in batches]

    points = points_of(1)
    assert len(set(points)) == total
    own = [task.examples(client_id, "train")[0] for client_id in task.train_client_ids]
    assert set(points) == {tuple(x) for x in np.concatenate(own)}
    again, later = points_of(1), points_of(2)
    assert points == again and points != later and set(points) == set(later)


def test_a_stage_may_have_pooled_examples_of_its_own():
    examples = np.arange(14.0).reshape(7, 2), np.arange(7)
    stage = _pooled_stage(BatchSpec(batch_size=3, num_epochs=1), examples)
    (batches,) = cohorts.cohort_datasets(stage, tiny_task.make(), 0, 1)
    labels = [y.numpy() for _, y in batches]
    assert [len(each) for each in labels] == [3, 3, 1]
    assert sorted(np.concatenate(labels)) == list(range(7))
