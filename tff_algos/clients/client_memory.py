"""Client memory: stores one row of tensors per client between rounds.

Some algorithms have stateful clients: SCAFFOLD's control variates, FedDyn's linear
terms, MOON's previous models. Their learning processes do not store this state: a
client's row is an input beside its examples, and its new row is among the measurements.
A `ClientMemory` stores the rows between rounds; a round's cost is proportional to its
cohort:

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

Rows are stored in memory or, if a directory is given, in a file, whose size grows with
the number of clients that have taken part.
"""

import os
import pathlib
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol, Self

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.hyperparameters import checked, hparam

FILE_NAME = "client_memory.rows"

_NEVER = -1
# The number of the write, then the checksum of the record and this number.
_TRAILER = struct.Struct("<QI")


def client_data_fields(process: tff.learning.templates.LearningProcess) -> list[str]:
    """Returns the names of the fields of a client's data; none if only examples."""
    member = _client_data_type(process)
    if isinstance(member, tff.SequenceType):
        return []
    return tff.structure.name_list(member)


def _client_data_type(process: tff.learning.templates.LearningProcess) -> tff.Type:
    return process.next.type_signature.parameter[1].member


def index_dataset(client: int) -> tf.data.Dataset:
    """Returns the `client_index` of a client's data: its index, int32 []."""
    return execution.ElementDataset(np.int32(client))


class ClientMemoryError(Exception):
    """A client memory is damaged or does not match the expected clients or rows."""


class _Records(Protocol):
    """Byte strings of equal length, by slot; each has the number of its write."""

    def read(self, slot: int, number: int) -> bytes: ...

    def write(self, slot: int, record: bytes, number: int) -> None: ...

    def flush(self) -> None: ...


class _MemoryRecords:
    """Records in memory."""

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def read(self, slot: int, number: int) -> bytes:
        del number  # Saved states have their own copy of these records.
        return self._records[slot]

    def write(self, slot: int, record: bytes, number: int) -> None:
        del number
        self._records[slot] = record

    def flush(self) -> None:
        pass


class _FileRecords:
    """Records in a file, each with its write's number and a checksum.

    The file is read and written through the page cache, not memory-mapped: a full disk
    then raises `OSError` instead of killing the process, and rows do not count as the
    process's memory.
    """

    def __init__(self, path: pathlib.Path, record_bytes: int) -> None:
        self._path = path
        self._record_bytes = record_bytes
        self._stride = record_bytes + _TRAILER.size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, slot: int, number: int) -> bytes:
        found = os.pread(self._file, self._stride, self._start(slot))
        record, trailer = found[: self._record_bytes], found[self._record_bytes :]
        if len(trailer) < _TRAILER.size or trailer != self._trailer(
            record, _TRAILER.unpack(trailer)[0]
        ):
            raise ClientMemoryError(
                f"{self._path} is damaged: a client's row differs from what was "
                "written; start over in another folder."
            )
        if _TRAILER.unpack(trailer)[0] != number:
            raise ClientMemoryError(
                f"{self._path}: another row has taken the place of a client's, because "
                "the saved state is older than those that are kept, or because another "
                "client memory writes to the same file."
            )
        return record

    def _trailer(self, record: bytes, number: int) -> bytes:
        checked = zlib.crc32(number.to_bytes(8), zlib.crc32(record))
        return _TRAILER.pack(number, checked)

    def _start(self, slot: int) -> int:
        # Slots come from arrays of int32, in which 2 GB of offset overflow.
        return int(slot) * self._stride

    def write(self, slot: int, record: bytes, number: int) -> None:
        whole = record + self._trailer(record, number)
        start = self._start(slot)
        while whole:  # A write may be partial; the next one then raises the error.
            written = os.pwrite(self._file, whole, start)
            whole, start = whole[written:], start + written

    def flush(self) -> None:
        os.fsync(self._file)


class ClientMemory:
    """Rows of tensors by client; zeros before a client has taken part.

    `save` and `restore` belong with checkpoints. In memory, a saved state includes the
    rows. In a file, rows of the last `keep` saved states are never overwritten (new rows
    are written to other slots), so each of these states can be restored at any time.
    """

    @checked
    def __init__(
        self,
        row_type: tff.Type,
        num_clients: Annotated[int, hparam(low=1, symbol="N")],
        directory: str | os.PathLike[str] | None = None,
        keep: Annotated[int, hparam(low=1)] = 2,
    ) -> None:
        """Initializes a memory of zeros.

        Args:
          row_type: One client's row: a structure of tensors of known shape.
          num_clients: The number of clients; clients are indices in [0, `num_clients`).
          directory: The directory of the file `client_memory.rows`; None to store the
            rows in memory.
          keep: How many of the last saved states can be restored, of rows in a file.

        Raises:
          HyperparameterError: If `num_clients` or `keep` is invalid.
          OSError: If the file cannot be created.
        """
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
        # The slot of each client's row, now and in the last saved states.
        self._slots = np.full(num_clients, _NEVER, np.int32)
        # Drawn at random for every write, so that no other row has the same.
        self._numbers = np.zeros(num_clients, np.uint64)
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
        """Creates the memory for the clients of a learning process.

        Args:
          process: The process, whose clients' data include a `memory`.
          num_clients: The number of clients, as the process was built with.
          directory: A folder for the rows, which are then read from a file; None to
            keep them in memory.

        Raises:
          ValueError: If the process's clients have no memory.
        """
        if "memory" not in client_data_fields(process):
            raise ValueError(
                "Expected a process whose clients have a memory, found clients with "
                f"the data {_client_data_type(process)}."
            )
        return cls(_client_data_type(process).memory.element, num_clients, directory)

    def row(self, client: int) -> Any:
        """Returns a client's row, structured as `row_type`, of NumPy arrays.

        A client that has reported no row has zeros.

        Args:
          client: The client's number, in [0, `num_clients`).

        Raises:
          ClientMemoryError: If the file is damaged.
          ValueError: If there is no such client.
        """
        record = self._read(self._checked(client))
        return tf.nest.pack_sequence_as(self._specs, list(self._tensors(record)))

    def _read(self, client: int) -> bytes:
        slot = self._slots[client]
        if slot == _NEVER:
            return bytes(self.row_bytes)
        return self._records.read(slot, int(self._numbers[client]))

    def _tensors(self, record: bytes) -> Iterator[np.ndarray]:
        start = 0
        for shape, dtype in self._shapes:
            count = int(np.prod(shape))
            yield np.frombuffer(record, dtype, count, start).reshape(shape)
            start += count * np.dtype(dtype).itemsize

    def dataset(self, client: int) -> tf.data.Dataset:
        """Returns the `memory` of a client's data: its row as the only element.

        Args:
          client: As for `row`, whose errors it raises.
        """
        return execution.ElementDataset(self.row(client))

    def update(self, report: Mapping[str, Any]) -> None:
        """Stores the rows that a round's clients report.

        Args:
          report: The round's measurement `memory`: `client_index` int32 [S], `accepted`
            bool [S] and `row`, structured as `row_type` with a leading axis of S.
            Clients that are not accepted keep their row.

        Raises:
          OSError: If the file cannot be written.
          ValueError: If a client is none of this memory's or is twice in the round; no
            row has been stored then.
          TypeError: If rows are not of `row_type`; no row has been stored then.
        """
        expected = ("client_index", "accepted", "row")
        if not {*expected} <= {*report}:
            raise ValueError(
                f"Expected the round's metrics['client_work']['memory'], with "
                f"{', '.join(expected)}; found {', '.join(map(str, report)) or 'nothing'}."
            )
        clients = np.asarray(report["client_index"])
        columns = self._checked_columns(report["row"], len(clients))
        accepted = np.flatnonzero(np.asarray(report["accepted"]))
        numbers = [self._checked(int(client)) for client in clients]
        if len(set(numbers)) < len(numbers):
            twice = next(client for client in numbers if numbers.count(client) > 1)
            raise ValueError(
                f"Expected each client once in a round, found client {twice} "
                f"{numbers.count(twice)} times: it has one row, so all but one of its "
                "changes would be lost."
            )
        for place in accepted:
            record = b"".join(column[place].tobytes() for column in columns)
            self._write(numbers[place], record)

    def _checked_columns(self, rows: Any, num_rows: int) -> list[np.ndarray]:
        """Returns the tensors of `num_rows` rows, with a leading axis."""
        tf.nest.assert_same_structure(self._specs, rows)
        columns = [np.asarray(column) for column in tf.nest.flatten(rows)]
        found = [(column.shape, column.dtype) for column in columns]
        expected = [
            ((num_rows, *shape), np.dtype(dtype)) for shape, dtype in self._shapes
        ]
        if found != expected:
            shown = [
                ", ".join(f"{dtype}{list(shape)}" for shape, dtype in each)
                for each in (expected, found)
            ]
            raise TypeError(f"Expected rows of {shown[0]}, found {shown[1]}.")
        return columns

    def _write(self, client: int, record: bytes) -> None:
        slot = int(self._slots[client])
        if slot == _NEVER or slot in self._protected:
            slot = self._new_slot()
        number = secrets.randbits(64)
        self._records.write(slot, record, number)
        self._slots[client], self._numbers[client] = slot, number

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
        """Returns the state for `restore`, to be saved with the process's state.

        Returns:
          `slots`, int32 [num_clients], `numbers`, uint64 [num_clients], and `rows`,
          uint8 [., row_bytes]: the rows, or none if they are in a file, which is flushed.

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
                nothing if slot in free else self._records.read(slot, 0)
                for slot in used
            )
            rows = np.frombuffer(whole, np.uint8).reshape(len(used), self.row_bytes)
        return {
            "slots": self._slots.copy(),
            "numbers": self._numbers.copy(),
            "rows": rows,
        }

    def restore(
        self,
        saved: Mapping[str, np.ndarray],
        earlier: Sequence[Mapping[str, np.ndarray]] = (),
    ) -> None:
        """Restores a state that `save` returned.

        Args:
          saved: The state, saved from a memory of the same clients and rows.
          earlier: Earlier saved states to keep restorable, oldest first.

        Raises:
          ClientMemoryError: If the state does not match the clients or rows. That a
            row in the file is of another state is found out when it is read.
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
        self._numbers = np.array(saved["numbers"], np.uint64)
        owners = dict(zip(slots.tolist(), self._numbers.tolist(), strict=True))
        for slot, record in enumerate(rows):
            self._records.write(slot, record.tobytes(), owners.get(slot, 0))
        # In memory, each saved state includes its rows; in a file, they must be kept.
        kept = [
            np.asarray(each["slots"], np.int32) for each in earlier if self._in_file
        ]
        self._num_slots = max(int(each.max()) for each in [slots, *kept]) + 1
        self._protect([*kept, slots.copy()][-self._keep :])

    def _protect(self, saved: list[np.ndarray]) -> None:
        """Protects the rows of saved states and frees all unused slots.

        In memory nothing needs protection, because saved states include their rows.
        """
        self._saved = saved if self._in_file else []
        self._protected = {int(k) for each in self._saved for k in each} - {_NEVER}
        needed = self._protected | set(self._slots.tolist())
        self._free = [k for k in range(self._num_slots) if k not in needed]
