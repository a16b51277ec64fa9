"""The EMNIST task: its stand-in, the real dataset, what the seed decides."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tasks
from tasks import emnist, generated_glyphs
from tasks.task import DataOptions, TaskError
from tests.testing.task_checks import check_task


@pytest.mark.parametrize("only_digits", [False, True])
def test_generated_emnist_fits_its_model(only_digits, tmp_path):
    task = tasks.load_task(
        "emnist",
        emnist.EmnistOptions(only_digits=only_digits, model="cnn_dropout"),
        DataOptions(cache_dir=str(tmp_path)),
    )
    assert task.data_source == "generated"
    assert "--data=tff" in task.notice
    assert len(task.train_client_ids) == 250 and len(task.eval_client_ids) == 90
    assert tasks.get("emnist").settings["client_learning_rate"] == 0.02
    check_task(task, num_classes=10 if only_digits else 62)


def test_the_seed_decides_the_weights_only():
    one, other = (
        tasks.load_task(
            "emnist",
            emnist.EmnistOptions(model="2nn", only_digits=True),
            DataOptions(data="generated", seed=seed),
        )
        for seed in (0, 1)
    )
    weights = [task.model.initial_weights[0][0] for task in (one, other)]
    assert np.any(np.asarray(weights[0]) != np.asarray(weights[1]))
    np.testing.assert_array_equal(
        one.examples("writer_0003", "train")[0],
        other.examples("writer_0003", "train")[0],
    )


def test_real_emnist_is_what_tff_reads(real_cache):
    task = tasks.load_task(
        "emnist",
        emnist.EmnistOptions(only_digits=True),
        DataOptions(cache_dir=real_cache),
    )
    assert task.data_source == "tff" and task.notice is None
    check_task(task, num_classes=10)
    train, test = tff.simulation.datasets.emnist.load_data(
        only_digits=True, cache_dir=real_cache
    )
    assert [*task.train_client_ids, *task.eval_client_ids] == train.client_ids
    assert len(task.train_client_ids) == round(len(train.client_ids) * 2500 / 3400)
    client_id = task.eval_client_ids[0]
    for split, data in (("train", train), ("test", test)):
        elements = list(data.create_tf_dataset_for_client(client_id))
        x, y = task.examples(client_id, split)
        np.testing.assert_array_equal(
            x[..., 0], np.stack([element["pixels"] for element in elements])
        )
        np.testing.assert_array_equal(y, [element["label"] for element in elements])
    generated_x, generated_y = generated_glyphs.examples(0, "train")
    assert (x.dtype, x.shape[1:]) == (generated_x.dtype, generated_x.shape[1:])
    assert y.dtype == generated_y.dtype


def test_a_file_of_digits_holds_no_letters(real_cache):
    with pytest.raises(TaskError, match=r"--only_digits=false: .*holds no letters"):
        tasks.load_task("emnist", data_options=DataOptions(cache_dir=real_cache))
