"""Measures the cost of GradMA-W's local steps: two gradients and a quadratic program.

    python benchmarks/step_correction.py

Steps of one client on random batches, many steps of each kind in one TensorFlow
function. The kinds alternate, and the minimum time is reported, because other programs
can only increase it. The cost of the quadratic program includes its inner products, its
solution and the combination of the rows, in percent of a plain step.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.comparison import tables
from tasks.models import image, normalized
from tff_algos.client_works import gradient_correction
from tff_algos.models import local_model
from tff_algos.models.local_model import Weights

_STEPS = flags.DEFINE_integer("timed_steps", 20, "Steps per call.", lower_bound=1)
_TURNS = flags.DEFINE_integer("turns", 5, "Calls of each kind.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("examples", 64, "Batch size.", lower_bound=1)


def models():
    """Returns models by their names in the table."""
    return {
        "TinyNN, 178,710 weights": normalized.build_tiny_nn((28, 28, 1), 10, seed=0),
        "EMNIST CNN, 1,199,882 weights": image.build_emnist_model(
            "cnn_dropout", only_digits=True, seed=0
        ),
    }


def time_steps(model) -> dict[str, float]:
    """Returns seconds of a plain gradient and of a correction."""
    view = local_model.create(model)
    weights = Weights(
        *(tuple(map(tf.constant, part)) for part in model.initial_weights)
    )
    x_spec, _ = model.input_spec
    rng = np.random.default_rng(0)
    size = _BATCH_SIZE.value
    batch = (
        tf.constant(rng.random([size, *x_spec.shape[1:]], dtype=np.float32)),
        tf.constant(rng.integers(0, 10, size).astype(np.int32)),
    )
    rows = [
        tuple(
            tf.constant(rng.normal(size=w.shape).astype(np.float32))
            for w in weights.trainable
        )
        for _ in range(3)
    ]

    def moved(trainable, by):
        return tuple(w - 1e-3 * g for w, g in zip(trainable, by, strict=True))

    def plain(trainable):
        at = Weights(trainable, weights.non_trainable)
        return view.loss_gradients(at, view.initial_metrics(), batch).gradients

    def correction(scope):
        return lambda trainable: gradient_correction.correct(
            trainable, rows, 0.0, scope
        )

    kinds = {
        "plain": plain,
        "global": correction("global"),
        "per_tensor": correction("per_tensor"),
    }

    def repeated(kind):
        @tf.function
        def run():
            _, trainable = tf.while_loop(
                lambda i, _: i < _STEPS.value,
                lambda i, t: (i + 1, moved(t, kind(t))),
                (0, weights.trainable),
                parallel_iterations=1,
            )
            # Uses all tensors, because TensorFlow prunes unused ones.
            return tf.add_n([tf.reduce_sum(tensor) for tensor in trainable])

        run().numpy()
        return run

    calls = {name: repeated(kind) for name, kind in kinds.items()}
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(_TURNS.value):
        for name, call in calls.items():
            start = time.perf_counter()
            call().numpy()
            least[name] = min(least[name], time.perf_counter() - start)
    return {name: seconds / _STEPS.value for name, seconds in least.items()}


def main(argv: list[str]) -> None:
    """Prints the table."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    header = ["model", "ms of a plain step", "program, % (global)", "% (per tensor)"]
    rows = []
    for name, model in models().items():
        seconds = time_steps(model)
        shares = [
            tables.format_number(100 * seconds[scope] / seconds["plain"])
            for scope in ("global", "per_tensor")
        ]
        rows.append([name, tables.format_number(1e3 * seconds["plain"]), *shares])
    print(tables.format_table(header, rows))


if __name__ == "__main__":
    app.run(main)
