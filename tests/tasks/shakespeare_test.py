"""The Shakespeare task: tokens as TFF's, its stand-in, the real dataset."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks import generated_text, shakespeare
from tasks.task import DataOptions, TaskError
from tests.testing import federated_file
from tests.testing.task_checks import check_task


@pytest.mark.parametrize("splits", [{}, {"train": {"a": [{"snippets": b"To be"}]}}])
def test_a_file_without_clients_is_refused(splits, tmp_path):
    path = tmp_path / "shakespeare.sqlite"
    federated_file.write(path, splits)
    message = f"{path} lacks clients of the split train or test; use a whole file"
    with pytest.raises(TaskError, match=message):
        tasks.load_task(
            "shakespeare", data_options=DataOptions(cache_dir=str(tmp_path))
        )


def test_generated_shakespeare_fits_its_model(tmp_path):
    task = tasks.load_task(
        "shakespeare", data_options=DataOptions(cache_dir=str(tmp_path))
    )
    assert task.data_source == "generated"
    assert len(task.train_client_ids) == 140 and len(task.eval_client_ids) == 60
    settings = tasks.get("shakespeare").settings
    assert settings == {"client_learning_rate": 1.0, "client_batch_size": 4}
    check_task(task, num_classes=90)


def test_mix_roles_share_the_training_examples_equally(tmp_path):
    own, dealt, again, other = (
        tasks.load_task(
            "shakespeare",
            data_options=DataOptions(cache_dir=str(tmp_path), seed=seed),
            num_clients=6,
            eval_overlap=0.5,
            mix_roles=iid,
        )
        for seed, iid in ((0, False), (0, True), (0, True), (1, True))
    )
    assert dealt.train_client_ids == own.train_client_ids
    sizes = [len(dealt.examples(c, "train")[0]) for c in dealt.train_client_ids]
    assert max(sizes) - min(sizes) <= 1

    def pairs(task):
        columns = zip(*(task.examples(c, "train") for c in task.train_client_ids))
        both = np.concatenate([np.concatenate(column) for column in columns], axis=1)
        return sorted(map(tuple, both))

    assert pairs(dealt) == pairs(own)
    first = dealt.train_client_ids[0]
    assert len(own.examples(first, "train")[0]) not in sizes
    for found, expected in zip(
        dealt.examples(first, "train"), again.examples(first, "train")
    ):
        np.testing.assert_array_equal(found, expected)
    assert pairs(other) != pairs(own)  # It has other clients.
    # Test examples stay with their roles, as do all examples of those that do not train.
    held_out = (set(own.eval_client_ids) - set(own.train_client_ids)).pop()
    for client, split in ((first, "test"), (held_out, "train"), (held_out, "test")):
        for found, expected in zip(
            dealt.examples(client, split), own.examples(client, split)
        ):
            np.testing.assert_array_equal(found, expected)


def _by_tff(snippets, batch_size=10_000):
    """Returns what TFF's own baseline makes of a client's snippets."""
    client_spec = tff.simulation.baselines.ClientSpec(
        num_epochs=1, batch_size=batch_size, shuffle_buffer_size=1
    )
    task = tff.simulation.baselines.shakespeare.create_character_prediction_task(
        client_spec, client_spec, use_synthetic_data=True
    )
    dataset = task.datasets.eval_preprocess_fn(
        tf.data.Dataset.from_tensor_slices({"snippets": snippets})
    )
    (batch,) = dataset.as_numpy_iterator()
    return batch


def test_real_shakespeare_is_what_tff_reads(real_cache):
    task = tasks.load_task(
        "shakespeare", data_options=DataOptions(cache_dir=real_cache)
    )
    assert task.data_source == "tff"
    check_task(task, num_classes=90)
    train, _ = tff.simulation.datasets.shakespeare.load_data(cache_dir=real_cache)
    assert [*task.train_client_ids, *task.eval_client_ids] == train.client_ids
    snippets = [
        element["snippets"].numpy()
        for client_id in train.client_ids[:3]
        for element in train.create_tf_dataset_for_client(client_id)
    ]
    ours = [task.examples(client_id, "train") for client_id in train.client_ids[:3]]
    for axis, expected in enumerate(_by_tff(snippets)):
        np.testing.assert_array_equal(
            np.concatenate([example[axis] for example in ours]), expected
        )


def test_tokens_are_those_of_tff():
    everything = bytes(range(256))
    snippets = [b"", b"a", b"Hark!\r\n", b"x" * 78, b"x" * 79, b"y" * 80, everything]
    snippets += generated_text.snippets(0, "train")
    for ours, theirs in zip(shakespeare.tokenize(snippets), _by_tff(snippets)):
        assert ours.dtype == np.int32 and ours.shape[1:] == (80,)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "tokenize", [shakespeare.tokenize, shakespeare.tokenize_by_character]
)
def test_no_snippets_have_no_tokens(tokenize):
    for ids in tokenize([]):
        assert ids.shape == (0, 80) and ids.dtype == np.int32


def test_leafs_examples_predict_each_character_after_a_full_sequence():
    snippets = [b"Hark!", b"Who is there?"]
    a, b = ([shakespeare.BEGIN, *ids, shakespeare.END] for ids in _characters(snippets))
    text = a + b
    x, y = shakespeare.tokenize_by_character(snippets, sequence_length=4)
    assert x.shape == y.shape == (len(text) - 4, 4) and y.dtype == np.int32
    for position, (before, target) in enumerate(zip(x, y, strict=True)):
        np.testing.assert_array_equal(before, text[position : position + 4])
        np.testing.assert_array_equal(target, [0, 0, 0, text[position + 4]])


def test_a_short_text_is_one_example_of_leafs():
    x, y = shakespeare.tokenize_by_character([b"ay"], sequence_length=6)
    (ids,) = _characters([b"ay"])
    np.testing.assert_array_equal(x, [[0, 0, 0, shakespeare.BEGIN, *ids]])
    np.testing.assert_array_equal(y, [[0] * 5 + [shakespeare.END]])


def _characters(snippets):
    """The ids of characters: their place in the vocabulary, from 1."""
    return [
        [shakespeare.CHARACTERS.index(character) + 1 for character in snippet.decode()]
        for snippet in snippets
    ]


def test_only_last_characters_count_where_they_alone_are_predicted():
    options = shakespeare.ShakespeareOptions(predicted_characters="last")
    task = shakespeare.load(options, DataOptions(data="generated"))
    x, y = task.examples(task.train_client_ids[0], "train")
    assert len(x) > 80 and np.all(y[:, :-1] == shakespeare.PADDING)
    assert np.all(y[:, -1] != shakespeare.PADDING)


def test_the_vocabulary_has_86_characters_and_4_special_ids():
    assert len(set(shakespeare.CHARACTERS)) == len(shakespeare.CHARACTERS) == 86
    assert shakespeare.VOCABULARY_SIZE == 90
    assert tf.int32 == shakespeare.tokenize([b"a"])[0].dtype
