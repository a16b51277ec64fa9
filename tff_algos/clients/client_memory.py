"""What clients keep between rounds: rows of tensors, by client.

Some algorithms have clients that remember: SCAFFOLD's control variates, FedDyn's linear
terms, MOON's previous models. Their learning processes stay without such state: a row
goes in beside a client's examples, and the new one comes out among the measurements.
Here are the rows in between, each round's cost in proportion to its cohort:

    process = tff_algos.build_scaffold(model, client_learning_rate=0.1, num_clients=500)
    memory = tff_algos.ClientMemory.of_process(process, num_clients=500)
    state = process.initialize()
    for cohort in cohorts:  # lists of numbers in [0, 500)
        output = process.next(state, [
            {"examples": examples(k), "client_index": tff_algos.index_dataset(k),
             "memory": memory.dataset(k)}
            for k in cohort
        ])
        state = output.state
        memory.update(output.metrics["client_work"]["memory"])

In memory by default; in a file where a directory is given, whose size grows with the
clients that have taken part.
"""

import os
import pathlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution

FILE_NAME = "client_memory.rows"

_NEVER = -1
_CHECKSUM = struct.Struct("<I")


def client_data_fields(process: tff.learning.templates.LearningProcess) -> list[str]:
    """Returns what a client's data consist of, by name; nothing if of examples alone."""
    member = _client_data_type(process)
    if isinstance(member, tff.SequenceType):
        return []
    return tff.structure.name_list(member)


def _client_data_type(process: tff.learning.templates.LearningProcess) -> tff.Type:
    return process.next.type_signature.parameter[1].member


def index_dataset(client: int) -> tf.data.Dataset:
    """Returns the `client_index` of a client's data: its number, int32 []."""
    return execution.ElementDataset(np.int32(client))


class ClientMemoryError(Exception):
    """A client memory is damaged, or of other clients or rows than expected."""


class _Records(Protocol):
    """Byte strings of one length, by slot."""

    def read(self, slot: int) -> bytes: ...

    def write(self, slot: int, record: bytes) -> None: ...

    def flush(self) -> None: ...


class _MemoryRecords:
    """Records in memory."""

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def read(self, slot: int) -> bytes:
        return self._records[slot]

    def write(self, slot: int, record: bytes) -> None:
        self._records[slot] = record

    def flush(self) -> None:
        pass


class _FileRecords:
    """Records in a file, each with its checksum.

    Read and written through the page cache, not mapped: a full disk is then an
    `OSError`, not the end of the process, and no row counts as the process's memory.
    """

    def __init__(self, path: pathlib.Path, record_bytes: int) -> None:
        self._path = path
        self._record_bytes = record_bytes
        self._stride = record_bytes + _CHECKSUM.size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, slot: int) -> bytes:
        found = os.pread(self._file, self._stride, slot * self._stride)
        record, checksum = found[: self._record_bytes], found[self._record_bytes :]
        if checksum != _CHECKSUM.pack(zlib.crc32(record)):
            raise ClientMemoryError(
                f"{self._path} is damaged: a client's row is not what was written; "
                "start again in another folder."
            )
        return record

    def write(self, slot: int, record: bytes) -> None:
        whole = record + _CHECKSUM.pack(zlib.crc32(record))
        start = slot * self._stride
        while whole:  # A write may be cut short; the next one says why.
            written = os.pwrite(self._file, whole, start)
            whole, start = whole[written:], start + written

    def flush(self) -> None:
        os.fsync(self._file)


class ClientMemory:
    """Rows of tensors by client; zeros before a client has taken part.

    `save` and `restore` go with checkpoints. Rows that a checkpoint refers to are not
    overwritten while it is among the last `keep`: what a client has after it is
    written elsewhere, so that an earlier state can be gone back to at any moment.
    """

    def __init__(
        self,
        row_type: tff.Type,
        num_clients: int,
        directory: str | os.PathLike[str] | None = None,
        keep: int = 2,
    ) -> None:
        """Makes a memory of zeros.

        Args:
          row_type: One client's row: a structure of tensors of known shape.
          num_clients: Clients are numbers in [0, `num_clients`).
          directory: Where the file `client_memory.rows` is or shall be; None to keep
            the rows in memory.
          keep: How many of the last saved states can be restored, >= 1.

        Raises:
          OSError: If the file cannot be made.
          ValueError: If `num_clients` or `keep` is less than one.
        """
        for name, value in (("num_clients", num_clients), ("keep", keep)):
            if value < 1:
                raise ValueError(f"Expected {name} of at least 1, found {value}.")
        self._specs = tff.types.type_to_tf_tensor_specs(row_type)
        flat = tf.nest.flatten(self._specs)
        self._shapes = [
            (tuple(s.shape.as_list()), s.dtype.as_numpy_dtype) for s in flat
        ]
        self.row_bytes = sum(
            int(np.prod(shape)) * np.dtype(dtype).itemsize
            for shape, dtype in self._shapes
        )
        self._in_file = directory is not None
        self._records: _Records = (
            _FileRecords(pathlib.Path(directory) / FILE_NAME, self.row_bytes)
            if self._in_file
            else _MemoryRecords()
        )
        # Where each client's row is, now and in the states that were saved last.
        self._slots = np.full(num_clients, _NEVER, np.int32)
        self._saved: list[np.ndarray] = []
        self._keep = keep
        self._free: list[int] = []
        self._num_slots = 0
        self._protected: set[int] = set()

    @classmethod
    def of_process(
        cls,
        process: tff.learning.templates.LearningProcess,
        num_clients: int,
        directory: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Makes the memory that a learning process's clients need.

        Raises:
          ValueError: If its clients remember nothing.
        """
        if "memory" not in client_data_fields(process):
            raise ValueError(
                "Expected a process whose clients have a memory, found clients with "
                f"the data {_client_data_type(process)}."
            )
        return cls(_client_data_type(process).memory.element, num_clients, directory)

    def row(self, client: int) -> Any:
        """Returns a client's row, structured as `row_type`.

        Raises:
          ClientMemoryError: If the file is damaged.
        """
        slot = self._slots[self._checked(client)]
        record = bytes(self.row_bytes) if slot == _NEVER else self._records.read(slot)
        return tf.nest.pack_sequence_as(self._specs, list(self._tensors(record)))

    def _tensors(self, record: bytes) -> Iterator[np.ndarray]:
        start = 0
        for shape, dtype in self._shapes:
            count = int(np.prod(shape))
            yield np.frombuffer(record, dtype, count, start).reshape(shape)
            start += count * np.dtype(dtype).itemsize

    def dataset(self, client: int) -> tf.data.Dataset:
        """Returns the `memory` of a client's data: its row, as the one element."""
        return execution.ElementDataset(self.row(client))

    def update(self, report: Mapping[str, Any]) -> None:
        """Takes the rows that a round's clients report.

        Args:
          report: The round's measurement: `client_index` int32 [S], `accepted` bool
            [S] and `row`, structured as `row_type` with a leading axis of S. Clients
            that are not accepted keep their row.

        Raises:
          OSError: If the file cannot be written.
        """
        columns = [np.asarray(column) for column in tf.nest.flatten(report["row"])]
        clients = np.asarray(report["client_index"])
        for place in np.flatnonzero(np.asarray(report["accepted"])):
            record = b"".join(column[place].tobytes() for column in columns)
            self._write(int(clients[place]), record)

    def _write(self, client: int, record: bytes) -> None:
        slot = int(self._slots[self._checked(client)])
        if slot == _NEVER or slot in self._protected:
            slot = self._new_slot()
        self._records.write(slot, record)
        self._slots[client] = slot

    def _checked(self, client: int) -> int:
        if not 0 <= client < self._slots.size:
            raise ValueError(
                f"Expected a client in [0, {self._slots.size}), found {client}."
            )
        return client

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._num_slots += 1
        return self._num_slots - 1

    def save(self) -> Mapping[str, np.ndarray]:
        """Returns what `restore` needs, to be saved with the process's state.

        Returns:
          `slots`, int32 [num_clients], and `rows`, the rows themselves, uint8
          [., row_bytes]: none where they are in a file, which is flushed.

        Raises:
          OSError: If the file cannot be flushed.
        """
        self._records.flush()
        self._protect([*self._saved, self._slots.copy()][-self._keep :])
        rows = np.zeros([0, self.row_bytes], np.uint8)
        if not self._in_file:
            free, nothing = set(self._free), bytes(self.row_bytes)
            used = range(self._slots.max() + 1)
            whole = b"".join(
                nothing if slot in free else self._records.read(slot) for slot in used
            )
            rows = np.frombuffer(whole, np.uint8).reshape(len(used), self.row_bytes)
        return {"slots": self._slots.copy(), "rows": rows}

    def restore(
        self,
        saved: Mapping[str, np.ndarray],
        earlier: Sequence[Mapping[str, np.ndarray]] = (),
    ) -> None:
        """Goes back to what `save` returned.

        Args:
          saved: What `save` returned, of a memory of the same rows and clients.
          earlier: What else it returned that shall stay restorable, oldest first.

        Raises:
          ClientMemoryError: If it is of other clients or rows.
        """
        slots = np.asarray(saved["slots"], np.int32)
        rows = np.asarray(saved["rows"])
        if slots.shape != self._slots.shape or rows.shape[1:] != (self.row_bytes,):
            raise ClientMemoryError(
                f"a client memory of {slots.size} clients and rows of {rows.shape[1]} "
                f"bytes was saved, not of {self._slots.size} and {self.row_bytes}."
            )
        if not self._in_file and slots.max() >= len(rows):
            raise ClientMemoryError(
                "a client memory in a file was saved, not its rows."
            )
        self._slots = slots.copy()
        for slot, record in enumerate(rows):
            self._records.write(slot, record.tobytes())
        # In memory the rows come with each saved state; in a file they must stay.
        kept = [
            np.asarray(each["slots"], np.int32) for each in earlier if self._in_file
        ]
        self._num_slots = max(int(each.max()) for each in [slots, *kept]) + 1
        self._protect([*kept, slots.copy()][-self._keep :])

    def _protect(self, saved: list[np.ndarray]) -> None:
        """Keeps the rows of some saved states, and frees all that nobody needs."""
        self._saved = saved
        self._protected = set(np.concatenate(saved).tolist()) - {_NEVER}
        needed = self._protected | set(self._slots.tolist())
        self._free = [k for k in range(self._num_slots) if k not in needed]
