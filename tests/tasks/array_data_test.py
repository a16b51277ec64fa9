"""Tasks of whole arrays: every example has one client; tests, seeds, preprocessing."""

import attrs
import numpy as np
import pytest

from tasks import array_data
from tasks.models import image
from tasks.task import TaskError
from tests.testing import toy_arrays
from tests.testing.toy_arrays import NUM_CLASSES, generate, options


@pytest.fixture
def data_set():
    return toy_arrays.data_set()


def _task(data_set, tmp_path, text="iid:4", seed=0, client_test_fraction=0.0):
    return array_data.load_task(
        data_set,
        options(tmp_path, seed=seed),
        partition_text=text,
        client_test_fraction=client_test_fraction,
        model=image.build_emnist_model("2nn", only_digits=True, seed=seed),
    )


def _numbers(examples):
    """Returns the examples' numbers in their arrays, by their first pixel."""
    return (examples[0][:, 0, 0, 0] - 1000.0).astype(int)


class TestTask:
    def test_all_clients_train_and_are_evaluated(self, data_set, tmp_path):
        task = _task(data_set, tmp_path)
        assert task.name == "toy" and task.data_source == "generated"
        assert task.dataset_name == "toy_generated" and "--data=tff" in task.notice
        expected = ("client_000", "client_001", "client_002", "client_003")
        assert task.train_client_ids == task.eval_client_ids == expected

    def test_ids_sort_as_they_count(self, data_set, tmp_path):
        many = attrs.evolve(data_set, generate=lambda: generate(num_train=255))
        ids = _task(many, tmp_path, "iid:255").train_client_ids
        assert ids[0] == "client_000" and ids[-1] == "client_254"
        assert array_data.client_ids(1001)[-1] == "client_1000"
        assert array_data.client_ids(1001)[7] == "client_0007"

    @pytest.mark.parametrize("text", ["iid:4", "shards:2:4", "dirichlet:0.5:4"])
    def test_every_training_example_has_one_client(self, text, data_set, tmp_path):
        task = _task(data_set, tmp_path, text)
        parts = [task.examples(c, "train") for c in task.train_client_ids]
        numbers = np.concatenate([_numbers(part) for part in parts])
        labels = np.concatenate([y for _, y in parts])
        np.testing.assert_array_equal(np.sort(numbers), np.arange(90))
        np.testing.assert_array_equal(labels, numbers % NUM_CLASSES)

    def test_local_test_sets_come_from_the_test_set(self, data_set, tmp_path):
        task = _task(data_set, tmp_path, "shards:1:3")
        for client_id in task.eval_client_ids:
            own = task.examples(client_id, "test")
            assert len(own[1]) == 10
            np.testing.assert_array_equal(own[1], _numbers(own) % NUM_CLASSES)
            # One shard is one label here.
            assert set(own[1]) == set(task.examples(client_id, "train")[1])

    @pytest.mark.parametrize("text", ["shards:1:3", "dirichlet:0.1:7"])
    def test_clients_can_hold_out_their_own_examples(self, text, data_set, tmp_path):
        whole = _task(data_set, tmp_path, text)
        task = _task(data_set, tmp_path, text, client_test_fraction=0.2)
        for client_id in task.train_client_ids:
            everything = _numbers(whole.examples(client_id, "train"))
            train, test = (
                _numbers(task.examples(client_id, split)) for split in ("train", "test")
            )
            np.testing.assert_array_equal(np.sort([*train, *test]), everything)
            assert len(test) == round(0.2 * len(everything)) < len(everything)
            labels = task.examples(client_id, "test")[1]
            np.testing.assert_array_equal(labels, test % NUM_CLASSES)
        np.testing.assert_array_equal(
            _numbers(task.test_examples), _numbers(whole.test_examples)
        )

    def test_the_undivided_test_set(self, data_set, tmp_path):
        x, y = _task(data_set, tmp_path).test_examples
        assert x.dtype == np.float32 and y.dtype == np.int32
        np.testing.assert_array_equal(_numbers((x, y)), np.arange(30))
        np.testing.assert_array_equal(y, np.arange(30) % NUM_CLASSES)

    def test_arrays_are_shared_and_read_only(self, data_set, tmp_path):
        task = _task(data_set, tmp_path)
        once = task.examples("client_000", "train")
        assert task.examples("client_000", "train")[0] is once[0]
        for array in (*once, *task.test_examples):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0

    def test_clients_are_preprocessed_on_demand(self, data_set, tmp_path):
        sizes = []

        def preprocess(images):
            sizes.append(len(images))
            return toy_arrays.preprocess(images)

        task = _task(attrs.evolve(data_set, preprocess=preprocess), tmp_path)
        assert sizes == [30]
        task.examples("client_001", "train")
        assert sizes[1:] in ([22], [23])

    def test_labels_alone_are_those_of_the_examples(self, data_set, tmp_path):
        def refuse(images):
            assert len(images) == 30, "a client was read"
            return toy_arrays.preprocess(images)

        unread = _task(attrs.evolve(data_set, preprocess=refuse), tmp_path)
        task = _task(data_set, tmp_path)
        for client_id in task.train_client_ids:
            np.testing.assert_array_equal(
                unread.train_labels(client_id), task.examples(client_id, "train")[1]
            )

    def test_unknown_client(self, data_set, tmp_path):
        with pytest.raises(KeyError, match="nobody"):
            _task(data_set, tmp_path).examples("nobody", "train")

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_the_seed_decides_the_division(self, split, data_set, tmp_path):
        one, again, other = (
            [
                _numbers(task.examples(client_id, split)).tolist()
                for client_id in task.train_client_ids
            ]
            for task in (_task(data_set, tmp_path, seed=seed) for seed in (0, 0, 1))
        )
        assert one == again != other

    def test_too_few_examples_for_the_partition(self, data_set, tmp_path):
        with pytest.raises(TaskError, match="--partition=iid:91 needs 91 .* has 90"):
            _task(data_set, tmp_path, "iid:91")


def test_channels_are_standardized_as_computed_by_hand():
    images = np.array([[[[0, 255]], [[51, 102]]]], np.uint8)
    found = array_data.standardized(images, means=(0.2, 0.5), deviations=(0.1, 0.25))
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, [[[[-2.0, 2.0]], [[0.0, -0.4]]]], rtol=1e-6, atol=1e-6
    )
