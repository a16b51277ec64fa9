"""What a server remembers has to fit into half of the machine's memory."""

import types

import pytest

from tests.testing import tiny_task
from tff_algos.experiments import catalog, physical_memory
from tff_algos.hyperparameters import HyperparameterError

TASK = tiny_task.make()
N = len(TASK.train_client_ids)


@pytest.mark.parametrize("name", ["mifa", "gradma", "gradma_s"])
def test_more_rows_than_memory_holds_are_refused_with_what_would_do(name, monkeypatch):
    tiny = types.SimpleNamespace(total=2 * 9 * 4 * N - 1)
    monkeypatch.setattr(physical_memory.psutil, "virtual_memory", lambda: tiny)
    recipe = catalog.get(name)
    settings = recipe.resolve(TASK.name, {}, {"clients_per_round": 3})
    with pytest.raises(HyperparameterError, match="try --memory_dtype=bfloat16"):
        recipe.stages(TASK, settings)
