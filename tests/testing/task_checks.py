"""What every task has to fulfill."""

import pytest

from tff_algos.clients.batching import BatchSpec

SPEC = BatchSpec(batch_size=4, num_epochs=1)


def check_task(task, num_classes):
    """Checks a task against its own model."""
    assert task.train_client_ids and task.eval_client_ids
    assert not set(task.train_client_ids) & set(task.eval_client_ids)
    spec = tuple(task.model.input_spec)
    for client_id in (task.train_client_ids[0], task.eval_client_ids[-1]):
        for split in ("train", "test"):
            dataset = task.client_dataset(client_id, split, SPEC)
            assert dataset.element_spec == spec
            _, y = task.examples(client_id, split)
            assert len(y) > 0 and y.min() >= 0 and y.max() < num_classes
            assert task.examples(client_id, split)[1] is y
    with pytest.raises(KeyError):
        task.examples("nobody", "train")
    x, _ = next(iter(task.client_dataset(task.train_client_ids[0], "train", SPEC)))
    logits = task.model.predict_on_batch(task.model.initial_weights, x, training=False)
    assert logits.shape[-1] == num_classes
