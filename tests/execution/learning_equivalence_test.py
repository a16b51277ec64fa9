"""tff.learning trains in this process as on TFF's own runtime."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence, problems
from tests.testing import learning_models as models
from tests.testing.speed import some_fast

algorithms = tff.learning.algorithms
optimizers = tff.learning.optimizers

# Three rounds with other clients each, of sizes that differ.
SIZES = ((6, 3, 9), (1, 12), (5, 5, 2, 7))


def sgd(rate=0.1, momentum=None):
    return optimizers.build_sgdm(rate, momentum)


def falling_rate(number):
    return 0.1 / (1.0 + tf.cast(number, tf.float32))


def batched(*clients):
    return [client.batches(4, dtype=np.float32) for client in clients]


def assert_same_training(process, cohorts):
    rounds = [(cohort,) for cohort in cohorts]
    return equivalence.assert_same_rounds(process, *rounds, atol=1e-6)


TRAINING = {
    "weighted_fed_avg": lambda model: algorithms.build_weighted_fed_avg(
        model, sgd(), sgd(1.0, momentum=0.9)
    ),
    "unweighted_fed_avg": lambda model: algorithms.build_unweighted_fed_avg(
        model, sgd(0.05, momentum=0.5), optimizers.build_adam(0.1)
    ),
    "fed_avg_schedule": (
        lambda model: algorithms.build_weighted_fed_avg_with_optimizer_schedule(
            model, falling_rate, sgd
        )
    ),
    "weighted_fed_prox": lambda model: algorithms.build_weighted_fed_prox(
        model, 0.3, sgd()
    ),
    "unweighted_fed_prox": lambda model: algorithms.build_unweighted_fed_prox(
        model, 0.3, sgd()
    ),
    "fed_sgd": lambda model: algorithms.build_fed_sgd(model, sgd(0.1, momentum=0.9)),
    "weighted_mime_lite": lambda model: algorithms.build_weighted_mime_lite(
        model, sgd(0.1, momentum=0.9)
    ),
    "unweighted_mime_lite": lambda model: algorithms.build_unweighted_mime_lite(
        model, optimizers.build_adagrad(0.1)
    ),
    "mime_lite_schedule": (
        lambda model: algorithms.build_mime_lite_with_optimizer_schedule(
            model, falling_rate, sgd(0.1, momentum=0.9)
        )
    ),
}


FAST_TRAINING = (
    "weighted_fed_avg",
    "unweighted_fed_prox",
    "fed_sgd",
    "weighted_mime_lite",
    "mime_lite_schedule",
)


@pytest.mark.parametrize("name", some_fast(TRAINING, FAST_TRAINING))
def test_a_functional_model_trains_to_the_same(name):
    process = TRAINING[name](models.functional_model())
    cohorts = models.cohorts(*SIZES)
    outputs = assert_same_training(process, cohorts)
    weights = problems.vector_of(process, outputs[-1].state)
    assert np.linalg.norm(weights - problems.initial_vector()) > 0.01


@pytest.mark.parametrize("model", ["functional", "keras"])
@pytest.mark.parametrize("name", ["weighted_fed_avg", "fed_sgd", "weighted_mime_lite"])
def test_clients_one_by_one_and_many_at_a_time_are_the_same(name, model):
    process = TRAINING[name](
        models.keras_model if model == "keras" else models.functional_model()
    )
    outputs = []
    for batch_clients in (True, False):
        context = equivalence.in_process(batch_clients=batch_clients)
        state = equivalence.call(context, process.initialize)
        for cohort in models.cohorts(*SIZES, (4, 0, 1)):
            output = equivalence.call(context, process.next, state, cohort)
            state = output.state
        outputs.append(output)
    # Weights near 1 after several steps, some of which cancel to 1e-4: some tens of eps.
    equivalence.assert_same(*outputs, atol=5e-6)


@pytest.mark.parametrize(
    "name",
    some_fast(TRAINING, ["weighted_fed_avg", "fed_sgd", "weighted_mime_lite"]),
)
def test_a_keras_model_trains_to_the_same(name):
    process = TRAINING[name](models.keras_model)
    outputs = assert_same_training(process, models.cohorts(*SIZES))
    train = outputs[0].metrics["client_work"]["train"]
    assert train["num_examples"] == 2 * sum(SIZES[0])


OPTIMIZERS = {
    "adagrad": lambda: optimizers.build_adagrad(0.1),
    "adam": lambda: optimizers.build_adam(0.1),
    "adamw": lambda: optimizers.build_adamw(0.1, weight_decay=0.01),
    "rmsprop": lambda: optimizers.build_rmsprop(0.01),
    "yogi": lambda: optimizers.build_yogi(0.1),
    "schedule_learning_rate": lambda: optimizers.schedule_learning_rate(
        sgd(0.1, momentum=0.9), lambda step: 0.1 * 0.9 ** tf.cast(step, tf.float32)
    ),
}


@pytest.mark.parametrize(
    "name", some_fast(OPTIMIZERS, ["adam", "schedule_learning_rate"])
)
def test_optimizers_take_the_same_steps_at_clients_and_at_the_server(name):
    model = models.functional_model()
    process = algorithms.build_weighted_fed_avg(
        model, OPTIMIZERS[name](), OPTIMIZERS[name]()
    )
    assert_same_training(process, models.cohorts(*SIZES))


AGGREGATORS = {
    "robust": tff.learning.robust_aggregator,
    "debug": lambda: tff.learning.add_debug_measurements(tff.aggregators.MeanFactory()),
    "no_noise": lambda: tff.aggregators.as_weighted_aggregator(
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 3.0, 0.5)
    ),
}


@pytest.mark.parametrize("name", some_fast(AGGREGATORS, ["robust"]))
def test_training_with_an_aggregator_that_keeps_state_is_the_same(name):
    model = models.functional_model()
    aggregator = AGGREGATORS[name]()
    process = algorithms.build_weighted_fed_avg(
        model, sgd(), model_aggregator=aggregator
    )
    assert_same_training(process, models.cohorts(*SIZES))


def test_training_by_iterators_is_the_same():
    process = algorithms.build_weighted_fed_avg(
        models.functional_model(),
        sgd(),
        loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
    assert_same_training(process, models.cohorts(*SIZES))


@pytest.fixture(scope="module")
def fed_avg():
    return algorithms.build_weighted_fed_avg(models.functional_model(), sgd())


COHORTS = {
    "no clients": (),
    "one client": (5,),
    "an empty client": (6, 0, 4),
    "only empty clients": (0, 0),
    "ragged clients": (1, 40, 2, 17),
    "more clients than threads": (3, 1, 2, 5, 4, 0, 6, 2, 2, 3, 7, 1),
}


@pytest.mark.parametrize("name", COHORTS)
def test_cohorts_may_have_any_sizes(fed_avg, name):
    sizes = COHORTS[name]
    assert_same_training(fed_avg, models.cohorts(sizes, sizes))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_client_whose_update_is_not_finite_counts_as_nothing(fed_avg, number):
    first, last = problems.clients((6, 4))
    sick = problems.Client(np.full([3, 5], number), np.ones(3))
    cohort = batched(first, sick, last)
    (output,) = assert_same_training(fed_avg, [cohort])
    healthy = equivalence.call(
        equivalence.in_process(),
        fed_avg.next,
        fed_avg.initialize(),
        batched(first, last),
    )
    np.testing.assert_allclose(
        problems.vector_of(fed_avg, output.state),
        problems.vector_of(fed_avg, healthy.state),
        rtol=1e-6,
    )


def test_clients_may_be_lists_of_batches(fed_avg):
    (client,) = problems.clients((6,))
    x, y = client.x.astype(np.float32), client.y.astype(np.float32)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    as_lists = assert_same_training(fed_avg, [[batches, batches]])
    as_data_sets = assert_same_training(fed_avg, [batched(client, client)])
    equivalence.assert_same(as_lists, as_data_sets)


def test_weights_are_read_and_set(fed_avg):
    (output,) = assert_same_training(fed_avg, models.cohorts((4, 3)))
    weights = equivalence.assert_same_in_both(fed_avg.get_model_weights, output.state)
    twice = tff.learning.models.ModelWeights(
        tuple(2 * w for w in weights.trainable), weights.non_trainable
    )
    state = equivalence.assert_same_in_both(
        fed_avg.set_model_weights, output.state, twice
    )
    np.testing.assert_array_equal(
        problems.vector_of(fed_avg, state),
        2 * problems.vector_of(fed_avg, output.state),
    )
