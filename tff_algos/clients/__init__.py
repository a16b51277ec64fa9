"""Clients of a simulation: their batches, their memory, and attacks."""

from tff_algos.clients.attacks import attacked_batches, attacked_model
from tff_algos.clients.batching import BatchSpec, Examples, batch_examples
from tff_algos.clients.client_memory import (
    ClientMemory,
    ClientMemoryError,
    index_dataset,
)

__all__ = [
    "BatchSpec",
    "ClientMemory",
    "ClientMemoryError",
    "Examples",
    "attacked_batches",
    "attacked_model",
    "batch_examples",
    "index_dataset",
]
