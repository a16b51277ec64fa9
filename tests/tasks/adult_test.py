"""The Adult task: where its data come from, two clients, and the published sizes."""

import collections
import lzma
import pathlib
import shutil

import numpy as np
import pytest

import tasks
from tasks import adult, generated_adult
from tests import conftest
from tests.testing.adult_people import load, write
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError


@pytest.fixture(scope="module")
def real_adult(tmp_path_factory):
    """Returns a cache folder with the two real files."""
    folder = conftest._data_folder()
    cache = tmp_path_factory.mktemp("adult")
    for name in ("adult.data", "adult.test"):
        if folder is None or not (folder / f"{name}.xz").exists():
            pytest.skip(f"no real {name}.xz (set TFF_ALGOS_TEST_DATA)")
        with lzma.open(folder / f"{name}.xz") as packed, (cache / name).open("wb") as f:
            shutil.copyfileobj(packed, f)
    return cache


class TestSource:
    def test_auto_takes_the_files_if_both_are_there(self, tmp_path):
        task = load(write(tmp_path))
        assert task.data_source == "tff" and task.notice is None
        assert task.dataset_name == "adult"

    @pytest.mark.parametrize("removed", ["adult.data", "adult.test"])
    def test_auto_never_downloads(self, removed, tmp_path, monkeypatch):
        monkeypatch.setattr(adult.download, "obtain_published", None)
        (write(tmp_path) / removed).unlink()
        task = load(tmp_path)
        assert task.dataset_name == "adult_generated"
        assert f"found no {tmp_path / removed}, so" in task.notice
        assert "--data=tff" in task.notice and "\n" not in task.notice

    def test_tff_downloads_what_is_missing(self, tmp_path, monkeypatch):
        asked = []

        def obtain(file, cache_dir):
            asked.append(file)
            path = pathlib.Path(cache_dir) / file.name
            assert path.exists()
            return str(path)

        monkeypatch.setattr(adult.download, "obtain_published", obtain)
        assert load(write(tmp_path), "tff").data_source == "tff"
        assert asked == [adult.TRAIN_FILE, adult.TEST_FILE]

    def test_the_stand_in_when_it_is_asked_for(self, tmp_path):
        task = load(write(tmp_path), "generated")
        assert task.data_source == "generated" and task.notice is None


class TestTask:
    def test_two_clients_by_doctorate(self, tmp_path):
        task = load(write(tmp_path))
        assert task.train_client_ids == task.eval_client_ids == ("phd", "non_phd")
        for split in ("train", "test"):
            x, y = task.examples("phd", split)
            assert x[:, 21].tolist() == [1.0] and y.tolist() == [1]
            x, y = task.examples("non_phd", split)
            assert x[:, 21].tolist() == [0.0] and y.tolist() == [0]
        assert task.test_examples[1].tolist() == [1, 0]
        with pytest.raises(KeyError, match="nobody"):
            task.examples("nobody", "train")

    def test_examples_are_what_the_model_takes(self, tmp_path):
        task = load(tmp_path, "generated")
        spec = BatchSpec(batch_size=4, num_epochs=1)
        dataset = task.client_dataset("phd", "train", spec)
        assert dataset.element_spec == tuple(task.model.input_spec)
        x, _ = next(iter(dataset))
        assert set(np.unique(x)) == {0.0, 1.0}
        logits = task.model.predict_on_batch(task.model.initial_weights, x)
        np.testing.assert_array_equal(logits, np.zeros((4, 2)))

    @pytest.mark.parametrize("text", ["iid:20", "shards:2:20", "dirichlet:0.3:20"])
    def test_many_clients(self, text, tmp_path):
        task = load(tmp_path, "generated", partition=text)
        assert len(task.train_client_ids) == len(task.eval_client_ids) == 20
        parts = [task.examples(name, "train") for name in task.train_client_ids]
        people = generated_adult.people()
        pooled = np.concatenate([np.column_stack(part) for part in parts])
        expected = np.column_stack([people.x_train, people.y_train])
        np.testing.assert_array_equal(
            pooled[np.lexsort(pooled.T)], expected[np.lexsort(expected.T)]
        )
        for name in task.eval_client_ids:
            labels = set(task.examples(name, "train")[1])
            assert set(task.examples(name, "test")[1]) <= labels

    def test_off_by_one_clients_train_on_most_of_the_people_after_theirs(
        self, tmp_path
    ):
        task = load(tmp_path, "generated", partition="phd_off_by_one")
        true = load(tmp_path, "generated", partition="phd")
        people = generated_adult.people()
        doctor = people.x_train[:, adult.DOCTORATE] == 1
        for client, group in (("phd", doctor), ("non_phd", ~doctor)):
            after = (np.flatnonzero(group) + 1) % len(people.x_train)
            rows = np.column_stack([people.x_train, people.y_train])
            chosen = np.column_stack(task.examples(client, "train"))
            assert len(chosen) == len(after) * 4 // 5
            left = collections.Counter(map(tuple, rows[after].tolist()))
            left.subtract(map(tuple, chosen.astype(int).tolist()))
            assert min(left.values()) >= 0
        for client in ("phd", "non_phd"):
            for found, wanted in zip(
                task.examples(client, "test"),
                true.examples(client, "test"),
                strict=True,
            ):
                np.testing.assert_array_equal(found, wanted)

    @pytest.mark.parametrize("partition", ["phd", "phd_off_by_one"])
    def test_people_with_a_doctorate_may_train_alone(self, partition, tmp_path):
        alone = load(tmp_path, "generated", partition=partition, only_doctorate=True)
        both = load(tmp_path, "generated", partition=partition)
        assert alone.train_client_ids == ("phd",)
        assert alone.eval_client_ids == both.eval_client_ids == ("phd", "non_phd")
        for found, wanted in zip(
            alone.examples("phd", "train"), both.examples("phd", "train"), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
        with pytest.raises(
            HyperparameterError, match="only_doctorate=True cannot .* set phd or"
        ):
            load(tmp_path, "generated", partition="iid:9", only_doctorate=True)

    def test_the_seed_decides_a_division_among_many(self, tmp_path):
        one, again, other = (
            load(tmp_path, "generated", seed, partition="iid:9").examples(
                "client_003", "train"
            )[0]
            for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(one, again)
        assert one.shape != other.shape or np.any(one != other)

    def test_settings_and_defaults(self):
        assert tasks.get("adult").settings == {
            "client_batch_size": 10,
            "client_epochs_per_round": 1,
            "client_learning_rate": 0.01,
            "clients_per_round": 2,
        }
        assert adult.AdultOptions() == adult.AdultOptions(
            model="linear", partition="phd", initializer="zeros"
        )

    def test_the_initializer_decides_where_all_clients_start(self, tmp_path):
        def kernel(seed, name):
            task = load(tmp_path, "generated", seed, initializer=name)
            return task.model.initial_weights[0][0]

        assert not kernel(3, "zeros").any()
        one, again, other = (kernel(seed, "uniform") for seed in (3, 3, 4))
        np.testing.assert_array_equal(one, again)
        assert np.all(one != other)

    def test_a_bad_initializer_names_the_choices(self):
        with pytest.raises(HyperparameterError, match="initializer='ones'.*zeros"):
            adult.AdultOptions(initializer="ones")

    @pytest.mark.parametrize("text", ["", "doctorate", "phd:2", "iid", "iid:0", 3])
    def test_a_bad_partition_names_the_forms(self, text):
        with pytest.raises(HyperparameterError) as error:
            adult.AdultOptions(partition=text)
        assert str(error.value).startswith(
            f"partition={text!r} is not valid: expected phd, phd_off_by_one, iid:N, shards:K[:N] or "
            "dirichlet:ALPHA[:N] ("
        )


class TestRealAdult:
    """The sizes and rates of the dataset as it was published."""

    @pytest.fixture
    def task(self, real_adult):
        return load(real_adult)

    def test_is_the_published_files(self, real_adult):
        for file in (adult.TRAIN_FILE, adult.TEST_FILE):
            assert file.find_problem(str(real_adult / file.name)) is None

    def test_sizes_of_the_clients(self, task):
        sizes = {
            (client_id, split): len(task.examples(client_id, split)[1])
            for client_id in task.train_client_ids
            for split in ("train", "test")
        }
        assert sizes == {
            ("phd", "train"): 413,
            ("phd", "test"): 181,
            ("non_phd", "train"): 32_148,
            ("non_phd", "test"): 16_100,
        }

    def test_rates_of_the_larger_income(self, task):
        train, test = (
            [task.examples(client_id, split)[1] for client_id in task.train_client_ids]
            for split in ("train", "test")
        )
        rates = [y.mean() for y in (train[0], test[0], np.concatenate(train))]
        np.testing.assert_allclose(rates, [0.7409, 0.6906, 0.2408], atol=5e-5)
        x, y = task.test_examples
        assert x.shape == (16_281, 99) and x.dtype == np.float32
        assert y.mean() == pytest.approx(0.2362, abs=5e-5)

    def test_the_test_set_is_the_whole_file(self, task):
        x, y = task.test_examples
        own = [task.examples(name, "test") for name in task.eval_client_ids]
        assert sum(len(labels) for _, labels in own) == len(y)
        np.testing.assert_allclose(sum(part.sum(0) for part, _ in own), x.sum(0))

    def test_features_are_one_for_each_known_attribute(self, task):
        x = np.concatenate(
            [task.examples(name, "train")[0] for name in task.train_client_ids]
        )
        groups = np.split(x, np.cumsum([8, 16, 7, 14, 6, 5, 2]), axis=1)
        unknown = [int((group.sum(1) == 0).sum()) for group in groups]
        # Workclass, occupation and country alone are unknown of anyone.
        assert unknown == [1836, 0, 0, 1843, 0, 0, 0, 583]
        assert max(group.sum(1).max() for group in groups) == 1.0
