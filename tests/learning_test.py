"""Learning on real writers: what the main job is for."""

import csv
import json

import numpy as np

from tests.testing.command_line import run_here
from tff_algos.experiments.metrics_log import read_rows


def test_personalized_fedavg_learns_and_personalizes_on_real_emnist(
    real_cache, tmp_path, capfd
):
    finished = run_here(
        capfd,
        "--algo=personalized_fedavg",
        "--task=emnist",
        "--only_digits",
        "--data=tff",
        f"--cache_dir={real_cache}",
        "--pretrain_rounds=8",
        "--finetune_rounds=2",
        "--client_epochs_per_round=2",
        "--server_momentum=0.5",
        "--rounds_per_eval=5",
        "--eval_clients=0",
        "--personalization_epochs=5",
        # The training rate of 0.02 is unstable for a model trained so little.
        "--personalization_learning_rate=0.005",
        f"--output_dir={tmp_path}",
    )
    assert finished.status == 0, finished.err
    rows = read_rows(tmp_path / "metrics.csv")
    assert rows[0]["train/accuracy"] < 0.6
    assert rows[-1]["train/accuracy"] > 0.8
    people = json.loads((tmp_path / "summary.json").read_text())["personalization"]
    assert people["num_clients"] == 11
    assert people["initial_accuracy"] > 0.6
    assert people["personalized_accuracy"] > people["initial_accuracy"]
    with open(tmp_path / "per_client.csv", newline="") as file:
        clients = list(csv.DictReader(file))
    losses = [
        [float(row["loss"]) for row in clients if int(row["epoch"]) == epoch]
        for epoch in range(6)
    ]
    assert list(map(len, losses)) == [11] * 6
    assert np.mean(losses[5]) < np.mean(losses[0])
