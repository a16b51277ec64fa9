"""What clients weigh by and evaluate on where batches repeat or leave out examples.

Rounds of K local steps as the runner makes them, against plain NumPy in float64.
"""

import collections
import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tasks.task import Task
from tests.algorithms import statistics_test
from tests.testing import problems
from tests.testing.block_problems import block_model
from tests.testing.problems import f32
from tff_algos import execution
from tff_algos.experiments import catalogue, cohorts
from tff_algos.hyperparameters import HyperparameterError

SGD = tff.learning.optimizers.build_sgdm
RATE, BATCH, STEPS = 0.1, 4, 3
SIZES = (2, 5, 11)
CLIENTS = problems.clients(sizes=SIZES)
START = problems.initial_vector()


@pytest.fixture(autouse=True)
def in_process():
    with execution.in_process_context():
        yield


@functools.cache
def task():
    return Task(
        name="linear",
        data_source="generated",
        train_client_ids=("0", "1", "2"),
        eval_client_ids=("0",),
        examples=lambda client_id, split: attrs.astuple(CLIENTS[int(client_id)]),
        model=problems.linear_model(),
    )


def stage_of(algo, **hparams):
    """The one stage of an algorithm with K steps, all clients in every round."""
    chosen = {
        "clients_per_round": 3,
        "client_steps_per_round": STEPS,
        "client_batch_size": BATCH,
        "client_learning_rate": RATE,
    }
    chosen = {name: v for name, v in (chosen | hparams).items() if v is not None}
    recipe = catalogue.get(algo)
    (stage,) = recipe.stages(task(), recipe.resolve("linear", {}, chosen))
    return stage


def data_of(stage, round_num=1):
    """A round's data: what the process takes, and batches by field and client."""
    data = cohorts.cohort_datasets(stage, task(), seed=0, round_num=round_num)
    ids = cohorts.cohort_ids(stage, task(), seed=0, round_num=round_num)
    read = {}
    for client_id, own in zip(ids, data, strict=True):
        fields = own if isinstance(own, dict) else {"examples": own}
        read[int(client_id)] = {
            name: list(dataset.as_numpy_iterator()) for name, dataset in fields.items()
        }
    return data, read


def gradient(w, batch):
    return problems.Client(*batch).gradient(w)


def loss(w, batch):
    x, y = batch
    return np.mean((x @ w[:-1] + w[-1] - y) ** 2) / 2


def trained(w, batches):
    for batch in batches:
        w = w - f32(RATE) * gradient(w, batch)
    return w


def run(stage, data):
    output = stage.process.next(stage.process.initialize(), data)
    return problems.vector_of(stage.process, output.state)


def rows_after_a_round(stage):
    """What each client remembers after a round, and the batches as `data_of` reads."""
    memory = tff_algos.ClientMemory.of_process(stage.process, len(CLIENTS))
    data, read = data_of(stage)
    ids = cohorts.cohort_ids(stage, task(), seed=0, round_num=1)
    with_rows = cohorts.with_memory(data, [int(i) for i in ids], memory)
    output = stage.process.next(stage.process.initialize(), with_rows)
    memory.update(output.metrics["client_work"]["memory"])
    rows = [
        np.concatenate([np.ravel(t) for t in memory.row(k)])
        for k in range(len(CLIENTS))
    ]
    return rows, read


def assert_exact(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "weighting, weights",
    [
        ("num_examples", SIZES),
        ("uniform", (1, 1, 1)),
        ("examples_processed", (STEPS * BATCH,) * 3),
    ],
)
def test_clients_that_take_k_steps_weigh_by_the_examples_they_have(weighting, weights):
    stage = stage_of("fedavg", client_weighting=weighting)
    data, read = data_of(stage)
    ends = {k: trained(START, own["examples"]) for k, own in read.items()}
    expected = np.average([ends[k] for k in range(3)], axis=0, weights=weights)
    assert_exact(run(stage, data), expected)


def test_most_elements_bound_what_a_client_weighs():
    stage = stage_of("fedavg", max_elements_per_client=5)
    _, read = data_of(stage)
    told = {k: own["num_examples"] for k, own in read.items()}
    assert told == {0: [2], 1: [5], 2: [5]}


def test_per_pass_a_client_weighs_by_its_examples_however_many_it_processes():
    stage = stage_of(
        "fedavg", step_batching="per_pass", client_weighting="num_examples"
    )
    data, read = data_of(stage)
    sizes = {k: [len(y) for _, y in own["examples"]] for k, own in read.items()}
    # The last batch of one of five examples is left out; the next pass begins.
    assert sizes == {0: [2, 2, 2], 1: [4, 4, 4], 2: [4, 4, 3]}
    ends = [trained(START, read[k]["examples"]) for k in range(3)]
    assert_exact(run(stage, data), np.average(ends, axis=0, weights=SIZES))


def told(datasets, numbers):
    return [
        collections.OrderedDict(
            examples=dataset,
            num_examples=tf.data.Dataset.from_tensors(np.int64(number)),
        )
        for dataset, number in zip(datasets, numbers, strict=True)
    ]


BUILDERS = {
    "fedavgm": lambda m, **kw: tff_algos.build_fed_avg_m(m, SGD(RATE), **kw),
    "fedprox": lambda m, **kw: tff_algos.build_fed_prox(
        m, SGD(RATE), proximal_strength=0.5, **kw
    ),
    "mimelite": lambda m, **kw: tff_algos.build_mime_lite(
        m, SGD(RATE, momentum=0.5), **kw
    ),
    "gradma_w": lambda m, **kw: tff_algos.build_gradma_w(m, SGD(RATE), **kw),
    "fedmgda_plus": lambda m, **kw: tff_algos.build_fed_mgda_plus(
        m, SGD(RATE), epsilon=0.1, **kw
    ),
    "fedmlb": lambda m, **kw: tff_algos.build_fed_mlb(m, SGD(RATE), **kw),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_clients_told_to_have_one_example_each_weigh_alike(name):
    model = problems.linear_model(np.float32)
    batches = [client.batches(BATCH, dtype=np.float32) for client in CLIENTS]
    if name == "fedmlb":
        model = block_model(np.float32)
        batches = [
            client_batches.map(lambda x, y: (x, tf.cast(y > 0, tf.int32)))
            for client_batches in batches
        ]
    weighting = tff.learning.ClientWeighting
    by_told = BUILDERS[name](
        model, client_weighting=weighting.NUM_EXAMPLES, with_num_examples=True
    )
    alike = BUILDERS[name](model, client_weighting=weighting.UNIFORM)
    cohort = told(batches, (1, 1, 1))
    found, _ = problems.run(by_told, cohort, cohort)
    expected, _ = problems.run(alike, batches, batches)
    np.testing.assert_array_equal(found, expected)


def test_statistics_of_batch_normalization_weigh_by_the_examples_told():
    process = tff_algos.build_fed_avg(
        statistics_test.model(),
        SGD(statistics_test.RATE),
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        with_num_examples=True,
    )
    numbers = (3, 1, 7)
    output = process.next(
        process.initialize(), told(statistics_test.datasets(), numbers)
    )
    each = [
        statistics_test.statistics_after(*c) for c in enumerate(statistics_test.SIZES)
    ]
    expected = [np.average(t, axis=0, weights=numbers) for t in zip(*each, strict=True)]
    found = process.get_model_weights(output.state).non_trainable
    for tensor, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(tensor, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "total"])
@pytest.mark.parametrize(
    "length", [{}, {"client_steps_per_round": None, "client_epochs_per_round": 3}]
)
def test_q_fedavgs_loss_is_that_of_one_pass_over_the_clients_examples(
    reduction, length
):
    stage = stage_of("qfedavg", q=1.0, loss_reduction=reduction, **length)
    data, read = data_of(stage)
    lipschitz, numerator, denominator = 1 / RATE, 0.0, 0.0
    for own in read.values():
        means = [loss(START, batch) for batch in own["full_pass"]]
        sizes = [len(y) for _, y in own["full_pass"]]
        its_loss = (
            np.sum(means) if reduction == "total" else np.average(means, weights=sizes)
        )
        step = lipschitz * (START - trained(START, own["examples"]))
        numerator = numerator + its_loss * step
        denominator += step @ step + lipschitz * its_loss
    assert sum(len(y) for _, y in read[2]["full_pass"]) == SIZES[2]
    np.testing.assert_allclose(
        run(stage, data), START - numerator / denominator, rtol=1e-6, atol=1e-7
    )


def test_a_full_pass_begins_as_the_epochs_do():
    stage = stage_of("qfedavg", client_steps_per_round=None, client_epochs_per_round=3)
    _, read = data_of(stage)
    for own in read.values():
        for (x, y), (x_of_epochs, y_of_epochs) in zip(
            own["full_pass"], own["examples"], strict=False
        ):
            np.testing.assert_array_equal(x, x_of_epochs)
            np.testing.assert_array_equal(y, y_of_epochs)


def test_mimelites_full_gradient_is_over_the_clients_examples():
    stage = stage_of("mimelite", base_momentum=0.5)
    data, _ = data_of(stage)
    output = stage.process.next(stage.process.initialize(), data)
    gradients = [client.gradient(START) for client in CLIENTS]
    mime_state, _ = output.state.client_work
    momentum = np.concatenate(
        [np.ravel(t) for t in tf.nest.flatten(mime_state.optimizer["accumulator"])]
    )
    np.testing.assert_allclose(
        momentum, np.average(gradients, axis=0, weights=SIZES), rtol=1e-9
    )


def test_scaffolds_option_one_is_the_gradient_over_the_clients_examples():
    stage = stage_of("scaffold", control_variate="full_gradient")
    assert stage.client_data_fields == [
        "examples",
        "client_index",
        "full_pass",
        "memory",
    ]
    rows, _ = rows_after_a_round(stage)
    for row, client in zip(rows, CLIENTS, strict=True):
        np.testing.assert_allclose(row, client.gradient(START), rtol=1e-9)


def test_feddyns_adaptive_strength_goes_by_the_examples_that_a_client_has():
    """After a round from zeros, a row is alpha * delta of alpha_k = alpha * n / n_k."""
    alpha, mean = 0.3, np.mean(SIZES)
    stage = stage_of(
        "feddyn", dynamic_regularization=alpha, adaptive_regularization=True
    )
    rows, read = rows_after_a_round(stage)
    for number, size in enumerate(SIZES):
        w = START
        for batch in read[number]["examples"]:
            own = alpha * mean / size
            w = w - f32(RATE) * (gradient(w, batch) + own * (w - START))
        np.testing.assert_allclose(
            rows[number], alpha * (START - w), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("algo", ["fomaml", "maml"])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_maml_takes_straddling_steps_and_all_examples_for_its_query(algo, num_steps):
    stage = stage_of(
        algo,
        query="all",
        client_steps_per_round=num_steps,
        server_learning_rate=0.5,
    )
    data, read = data_of(stage)
    gradients = []
    for number, own in read.items():
        batches = own["examples"][:num_steps]
        assert all(len(y) == BATCH for _, y in batches)
        found = CLIENTS[number].gradient(trained(START, batches))
        if algo == "maml":
            for x, y in reversed(batches):
                features = np.column_stack([x, np.ones(len(y))])
                hessian = features.T @ features / len(y)
                found = found - f32(RATE) * hessian @ found
        gradients.append(found)
    assert_exact(run(stage, data), START - 0.5 * np.mean(gradients, axis=0))


def test_maml_per_pass_repeats_the_batches_of_one_pass():
    stage = stage_of("fomaml", query="all", step_batching="per_pass")
    assert stage.client_data_fields == []
    assert stage.batches.num_epochs == 1


def test_held_out_queries_have_no_straddling_batches():
    with pytest.raises(
        HyperparameterError, match="step_batching='straddling'.*per_pass"
    ):
        stage_of("maml", query="held_out", step_batching="straddling")
    assert stage_of("maml", query="held_out").batches.num_epochs == 1


@pytest.mark.parametrize("prox_half", [True, False])
@pytest.mark.parametrize("algo", ["fedprox", "mgda_prox"])
def test_the_proximal_penalty_with_and_without_its_half(algo, prox_half):
    mu = 0.7
    stage = stage_of(
        algo,
        proximal_strength=mu,
        prox_half=prox_half,
        **({"epsilon": 0.0} if algo == "mgda_prox" else {}),
    )
    data, read = data_of(stage)
    deltas = []
    for number in range(3):
        w = START
        for batch in read[number]["examples"]:
            pull = (mu if prox_half else 2 * mu) * (w - START)
            w = w - f32(RATE) * (gradient(w, batch) + pull)
        deltas.append(START - w)
    if algo == "mgda_prox":
        step = np.mean([delta / np.linalg.norm(delta) for delta in deltas], axis=0)
    else:
        step = np.average(deltas, axis=0, weights=SIZES)
    assert_exact(run(stage, data), START - step)


@pytest.mark.parametrize("count_shared", [True, False])
def test_shared_examples_count_in_fedshares_weights_or_not(count_shared):
    stage = stage_of(
        "fedshare",
        client_steps_per_round=None,
        client_epochs_per_round=2,
        shared_fraction=0.5,
        count_shared=count_shared,
    )
    data, read = data_of(stage)
    num_shared = sum(len(y) for _, y in read[0]["examples"]) // 2 - SIZES[0]
    assert num_shared > 0
    ends = [trained(START, read[k]["examples"]) for k in range(3)]
    weights = [size + (num_shared if count_shared else 0) for size in SIZES]
    assert_exact(run(stage, data), np.average(ends, axis=0, weights=weights))


def test_shared_examples_cannot_be_left_out_of_weights_that_do_not_count():
    with pytest.raises(HyperparameterError, match="count_shared=False.*num_examples"):
        stage_of("fedshare", count_shared=False, client_weighting="uniform")


@pytest.mark.parametrize("feed_back", [True, False])
def test_fedmeta_broadcasts_the_meta_updated_model_or_keeps_it_beside(feed_back):
    meta = problems.clients(sizes=(7,), seed=5)[0]
    meta_rate = 0.25
    process = tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(problems.linear_model(), SGD(RATE)),
        problems.linear_model(),
        (meta.x, meta.y),
        meta_learning_rate=meta_rate,
        feed_back=feed_back,
    )
    state, inner = process.initialize(), START
    np.testing.assert_array_equal(problems.vector_of(process, state), START)
    for _ in range(3):
        state = process.next(state, [c.batches() for c in CLIENTS]).state
        ends = [inner - f32(RATE) * client.gradient(inner) for client in CLIENTS]
        inner = np.average(ends, axis=0, weights=SIZES)
        updated = inner - meta_rate * meta.gradient(inner)
        assert_exact(problems.vector_of(process, state), updated)
        if feed_back:
            inner = updated


def test_fedmeta_beside_starts_again_from_weights_that_are_set():
    meta = CLIENTS[0]
    process = tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(problems.linear_model(), SGD(RATE)),
        problems.linear_model(),
        (meta.x, meta.y),
        meta_learning_rate=0.0,
        feed_back=False,
    )
    set_to = tff.learning.models.ModelWeights((np.ones(5), np.float64(2.0)), ())
    state = process.set_model_weights(process.initialize(), set_to)
    np.testing.assert_array_equal(problems.vector_of(process, state), [1] * 5 + [2])
    state = process.next(state, [CLIENTS[1].batches()]).state
    start = np.array([1.0] * 5 + [2])
    assert_exact(
        problems.vector_of(process, state),
        start - f32(RATE) * CLIENTS[1].gradient(start),
    )
