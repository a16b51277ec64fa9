"""Results folders of runs that are made up."""

import csv
import json

SUMMARY = {
    "dataset": "made_up",
    "final_metrics": {"eval/accuracy": 0.75},
    "personalization": {
        "initial_accuracy": 0.5,
        "personalized_accuracy": 0.625,
        "accuracy_by_epoch": [0.5, 0.625],
    },
    "rounds_to_eval_accuracy": {"0.85": 40, "0.9": None},
    "excluded": {"num_empty_clients": 3},
}
# Accuracy after rounds 5, 10, ... of a run.
CURVE = (0.1, 0.3, 0.2, 0.5, 0.6)


def write_run(folder, curve=CURVE, summary=SUMMARY, seconds=2.0, seed=0):
    """Writes what a run leaves: a row per round, an evaluation every fifth."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    names = ["round", "stage", "seconds", "train/loss", "eval/accuracy", "eval/loss"]
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number in range(1, 5 * len(curve) + 1):
            # The first round takes longer: something is compiled.
            row = {"round": number, "stage": "fedavg", "train/loss": 1 / number}
            row["seconds"] = 50.0 if number == 1 else seconds
            if number % 5 == 0:
                accuracy = curve[number // 5 - 1]
                row |= {"eval/accuracy": accuracy, "eval/loss": 1 - accuracy}
            writer.writerow(row)
    (folder / "per_client.csv").write_text(
        "client_id,seen,num_train_examples,num_test_examples,epoch,accuracy,loss\n"
        "a,true,9,4,0,0.5,1.0\na,true,9,4,1,0.75,1.0\n"
        "b,true,9,0,0,nan,nan\nb,true,9,0,1,nan,nan\n"
        "c,true,9,4,0,1.0,1.0\nc,true,9,4,1,0.25,1.0\n"
    )
    config = {"hyperparameters": {"algo": "fedavg", "task": "mnist", "seed": seed}}
    (folder / "config.json").write_text(json.dumps(config))
