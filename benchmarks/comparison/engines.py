"""The engines, workloads and growth curves to compare."""

import dataclasses
import re

import attrs

from benchmarks.engines import workloads
from benchmarks.engines.workloads import Workload


@attrs.frozen
class Engine:
    """A script that trains workloads.

    Attributes:
      name: The name in tables.
      module: Its module in `benchmarks.engines`.
      environment: Name of its requirements file; `None` for this Python.
      arguments: Arguments of the script.
      workloads: Names of the supported workloads; `None` for all.
    """

    name: str
    module: str
    environment: str | None = None
    arguments: tuple[str, ...] = ()
    workloads: tuple[str, ...] | None = None

    def runs(self, workload: str) -> bool:
        """Returns whether the engine supports a workload."""
        base = workload.partition("x")[0]
        return self.workloads is None or base in self.workloads


# The reference is what TFF's users have: its own runtime and a Keras model.
REFERENCE = "tff_native_keras"
OURS = "tff_in_process"
PEERS = ("fedjax", "pfl", "flower")
_JAX_WORKLOADS = ("W1", "W2", "W3", "W4")
GROWTH_ENGINES = (REFERENCE, OURS, "fedjax", "bare_tf")

ENGINES = (
    Engine("tff_native_keras", "run_tff", None, ("--runtime=native", "--keras")),
    Engine(
        "tff_in_process_keras", "run_tff", None, ("--runtime=in_process", "--keras")
    ),
    # As peers with a worker for each core do.
    Engine(
        "tff_in_process_keras_one_thread",
        "run_tff",
        None,
        ("--runtime=in_process", "--keras", "--intra_op_threads=1"),
    ),
    Engine(
        "tff_in_process_our_layers",
        "run_tff",
        None,
        ("--runtime=in_process", "--keras", "--own_layers"),
        workloads=("W3", "W5"),
    ),
    Engine(
        "tff_in_process_our_layers_one_thread",
        "run_tff",
        None,
        (
            *("--runtime=in_process", "--keras", "--own_layers"),
            "--intra_op_threads=1",
        ),
        workloads=("W3", "W5"),
    ),
    Engine("tff_in_process", "run_tff", None, ("--runtime=in_process",)),
    # As Flower: on this machine's cores, a worker each.
    Engine("tff_ray", "run_tff", None, ("--runtime=ray",)),
    Engine("fedjax", "run_fedjax", "fedjax", workloads=_JAX_WORKLOADS),
    Engine("pfl", "run_pfl", "pfl"),
    Engine("flower", "run_flower", "flower"),
    Engine("bare_torch", "run_bare_torch", "torch"),
    Engine("bare_jax", "run_bare_jax", "jax", workloads=_JAX_WORKLOADS),
    Engine("bare_tf", "run_bare_tf"),
)

# Learning rates at which training is stable. Those of the networks with ReLUs are even
# lower: their gradients jump when a ReLU or a maximum switches, which would amplify
# rounding errors by hundreds in each round and make weights incomparable.
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "cnn", 10, 100, 20, learning_rate=0.005),
        Workload("W2", "dense", 100, 20, 10),
        Workload("W3", "lstm", 10, 40, 4, learning_rate=0.5),
        Workload("W4", "dense", 1000, 20, 10),
        Workload("W5", "resnet", 10, 100, 20, learning_rate=0.005),
        Workload("W6", "transformer", 10, 100, 10, learning_rate=0.001),
    )
}


class UnknownWorkloadError(ValueError):
    """There is no such workload."""


def workload(name: str) -> Workload:
    """Returns a workload; "W2x10000" is W2 with 10,000 clients.

    Raises:
      UnknownWorkloadError: If there is none.
    """
    match = re.fullmatch(r"(W\d)(?:x([1-9]\d*))?", name)
    if match is None or match[1] not in WORKLOADS:
        raise UnknownWorkloadError(
            f"Expected names out of {', '.join(WORKLOADS)}, or one of these with a "
            f"number of clients, as in W2x10000; found {name}."
        )
    found = WORKLOADS[match[1]]
    if match[2] is None:
        return found
    return dataclasses.replace(found, name=name, num_clients=int(match[2]))


_MODELS = {
    "cnn": "EMNIST CNN",
    "lstm": "character LSTM, 2 x 256",
    "dense": "logistic regression",
    "resnet": "ResNet-20, group normalization",
    "transformer": "transformer, 2 x 128",
}


def title(workload: Workload) -> str:
    """Returns a workload's name and sizes in one line."""
    examples = workload.num_clients * workload.examples_per_client
    megabytes = examples * workloads.example_bytes(workload) / 2**20
    return (
        f"{workload.name}: {_MODELS[workload.model]} ({workload.num_weights:,} "
        f"weights), {workload.num_clients} clients x "
        f"{workload.examples_per_client} examples, batches of {workload.batch_size}, "
        f"{megabytes:.0f} MB of data"
    )


def tolerance(workload: Workload) -> float:
    """Returns the tolerance of the relative difference between weight changes.

    A single example in a wrong batch changes it by 0.05 in W1.
    """
    return 1e-2 if workload.model in ("cnn", "resnet") else 1e-3


@attrs.frozen
class Growth:
    """Workloads that differ in one size only.

    Attributes:
      name: The name in files.
      title: Description of the constant sizes.
      label: The name of the varying size.
      sizes: The values of the varying size, ascending.
      workloads: One workload for each size.
    """

    name: str
    title: str
    label: str
    sizes: tuple[int, ...]
    workloads: tuple[Workload, ...]


def _growth(name, title_, label, sizes, make) -> Growth:
    workloads = tuple(make(f"{name}-{size}", size) for size in sizes)
    return Growth(name, title_, label, sizes, workloads)


GROWTHS = (
    _growth(
        "clients",
        "logistic regression, 20 examples per client",
        "clients per round",
        (1, 3, 10, 30, 100, 300, 1000, 3000),
        lambda name, size: Workload(name, "dense", size, 20, 10),
    ),
    _growth(
        "examples",
        "logistic regression, 10 clients, batches of 10",
        "examples per client",
        (10, 30, 100, 300, 1000, 3000),
        lambda name, size: Workload(name, "dense", 10, size, 10, 0.01),
    ),
    _growth(
        "hidden_units",
        "one hidden layer (795 weights per unit), 10 clients x 20 examples",
        "hidden units",
        (16, 64, 256, 1024, 4096),
        lambda name, size: Workload(name, "dense", 10, 20, 10, 0.01, size),
    ),
)
