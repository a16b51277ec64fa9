"""TFF's build_weighted_fed_avg, on TFF's runtime, in this process or on Ray.

Clients are `tf.data` datasets, created once. All runtimes run the same learning
process.
"""

import argparse
import contextlib
import functools

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from benchmarks.engines import keras_models, recorder, tf_models, workloads
from tff_algos import execution


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime", choices=["native", "in_process", "ray"], default="native"
    )
    parser.add_argument(
        "--process",
        choices=["tff", "tff_algos"],
        default="tff",
        help="whose builder of federated averaging",
    )
    parser.add_argument(
        "--keras", action="store_true", help="the model from Keras' layers"
    )
    parser.add_argument(
        "--own_layers", action="store_true", help="with this project's layers"
    )
    parser.add_argument(
        "--intra_op_threads", type=int, help="threads within an op, in this process"
    )


@contextlib.contextmanager
def _runtime(name: str, **settings):
    """Installs the runtime and closes it afterwards."""
    if name == "native":
        with execution.native_context():
            yield
        return
    if not hasattr(execution, "set_in_process_context"):
        raise recorder.NotAvailableError("not available: no in-process runtime yet")
    try:
        context = getattr(execution, f"set_{name}_context")(**settings)
    except execution.ClusterError as error:
        raise recorder.NotAvailableError(f"not available: {error}") from error
    try:
        yield
    finally:
        # A runtime in this process may have nothing to close.
        getattr(context, "close", lambda: None)()


def _build_clients(inputs: workloads.Inputs) -> list[tf.data.Dataset]:
    batch_size = inputs.workload.batch_size
    return [
        tf.data.Dataset.from_tensor_slices(client).batch(batch_size)
        for client in zip(inputs.x, inputs.y, strict=True)
    ]


def _build_process(
    inputs: workloads.Inputs, arguments: argparse.Namespace
) -> tff.learning.templates.LearningProcess:
    if arguments.keras:
        model = functools.partial(keras_models.model_fn, inputs, arguments.own_layers)
    else:
        model = tf_models.functional_model(inputs)
    build = {
        "tff": tff.learning.algorithms.build_weighted_fed_avg,
        "tff_algos": tff_algos.build_fed_avg,
    }[arguments.process]
    return build(
        model,
        tff.learning.optimizers.build_sgdm(inputs.workload.learning_rate),
        tff.learning.optimizers.build_sgdm(1.0),
    )


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, arguments: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    threads = arguments.intra_op_threads
    settings = {} if threads is None else {"intra_op_threads": threads}
    with _runtime(arguments.runtime, **settings):
        clients = _build_clients(inputs)
        record.start()
        process = _build_process(inputs, arguments)

        def weights(state):
            return [np.asarray(w) for w in process.get_model_weights(state).trainable]

        initial = tff.learning.models.ModelWeights(list(inputs.weights), [])
        state = process.set_model_weights(process.initialize(), initial)
        another = True
        while another:
            state = process.next(state, clients).state
            another = record.finish_round(functools.partial(weights, state))


if __name__ == "__main__":
    recorder.main(run, _add_arguments)
