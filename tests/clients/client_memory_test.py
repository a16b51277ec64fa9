"""Rows of clients between rounds: as a dictionary has them, saved, restored, damaged."""

import collections
import contextlib
import os
import resource
import signal

import hypothesis
import numpy as np
import pytest
import tensorflow_federated as tff
from hypothesis import strategies as st

import tff_algos
from tests.testing import problems
from tff_algos.clients import client_memory
from tff_algos.clients.client_memory import FILE_NAME, ClientMemory, ClientMemoryError

NUM_CLIENTS = 5
# Names out of order, and types of three sizes.
ROW_TYPE = tff.to_type(
    collections.OrderedDict(
        weights=(tff.TensorType(np.float32, [2, 2]), tff.TensorType(np.float64)),
        seen=np.bool_,
    )
)
ROW_BYTES = 4 * 4 + 8 + 1
STRIDE = ROW_BYTES + 12  # With the number of its write and a checksum.


def row_of(number):
    """A row that tells a number; that of 0 is what everybody starts with."""
    matrix = np.full([2, 2], number, np.float32) * [[1, 2], [3, 4]]
    return collections.OrderedDict(
        weights=(matrix.astype(np.float32), np.float64(number) / 3), seen=number != 0
    )


def report_of(numbers, rejected=()):
    """What a round's clients report, given the number of each one's new row."""
    rows = [row_of(number) for number in numbers.values()]
    return collections.OrderedDict(
        client_index=np.array(list(numbers), np.int32),
        accepted=np.array([k not in rejected for k in numbers]),
        row=collections.OrderedDict(
            weights=(
                np.array([r["weights"][0] for r in rows], np.float32).reshape(-1, 2, 2),
                np.array([r["weights"][1] for r in rows], np.float64),
            ),
            seen=np.array([r["seen"] for r in rows], bool),
        ),
    )


def assert_rows(memory, numbers):
    """Asserts that clients have these rows, to the bit; the others have zeros."""
    for client in range(NUM_CLIENTS):
        found, expected = memory.row(client), row_of(numbers.get(client, 0))
        assert list(found) == ["weights", "seen"]
        np.testing.assert_array_equal(found["weights"][0], expected["weights"][0])
        assert found["weights"][1] == expected["weights"][1]
        assert found["seen"] == expected["seen"]
        types = [found["weights"][0].dtype, found["weights"][1].dtype]
        assert types == [np.float32, np.float64] and found["seen"].dtype == bool


@pytest.fixture(params=["in_memory", "in_file"])
def folder(request, tmp_path):
    """Where rows are kept: in memory, and in a file."""
    return None if request.param == "in_memory" else tmp_path / "new" / "folder"


def make(folder, **kwargs):
    return ClientMemory(ROW_TYPE, NUM_CLIENTS, folder, **kwargs)


def test_rows_are_zeros_before_a_client_has_taken_part(folder):
    memory = make(folder)
    assert_rows(memory, {})
    assert memory.row_bytes == ROW_BYTES


def test_a_client_finds_what_it_reported_last(folder):
    memory = make(folder)
    memory.update(report_of({3: 1, 0: 2}))
    assert_rows(memory, {3: 1, 0: 2})
    memory.update(report_of({0: 3, 4: 4}))
    assert_rows(memory, {3: 1, 0: 3, 4: 4})
    memory.update(report_of({}))
    assert_rows(memory, {3: 1, 0: 3, 4: 4})


def test_clients_that_are_not_accepted_keep_their_row(folder):
    memory = make(folder)
    memory.update(report_of({0: 1, 1: 2}))
    memory.update(report_of({0: 3, 1: 4, 2: 5, 3: 6}, rejected=(0, 2)))
    assert_rows(memory, {0: 1, 1: 4, 3: 6})


def test_a_clients_data_set_holds_its_row_alone(folder):
    memory = make(folder)
    memory.update(report_of({2: 7}))
    (found,) = memory.dataset(2).as_numpy_iterator()
    np.testing.assert_array_equal(found["weights"][0], row_of(7)["weights"][0])
    spec = tff.types.tensorflow_to_type(memory.dataset(2).element_spec)
    assert spec.is_equivalent_to(ROW_TYPE)


def test_the_index_data_set_holds_the_clients_number():
    (found,) = tff_algos.index_dataset(4).as_numpy_iterator()
    assert found == 4 and found.dtype == np.int32


def test_a_row_that_was_read_is_not_changed_by_a_later_round(folder):
    memory = make(folder)
    memory.update(report_of({0: 1}))
    row = memory.row(0)
    memory.update(report_of({0: 2}))
    np.testing.assert_array_equal(row["weights"][0], row_of(1)["weights"][0])


def test_what_was_saved_is_restored_after_later_rounds(folder):
    memory = make(folder)
    memory.update(report_of({0: 1, 1: 2}))
    saved = memory.save()
    for number in range(3, 8):
        memory.update(report_of({0: number, number % NUM_CLIENTS: number}))
    memory.restore(saved)
    assert_rows(memory, {0: 1, 1: 2})
    # And once more, after other rounds.
    memory.update(report_of({1: 9, 4: 9}))
    memory.restore(saved)
    assert_rows(memory, {0: 1, 1: 2})


def test_another_process_restores_what_was_saved(folder):
    memory = make(folder)
    memory.update(report_of({0: 1, 1: 2}))
    saved = {name: np.array(value) for name, value in memory.save().items()}
    memory.update(report_of({0: 3, 2: 4}))
    del memory
    other = make(folder)
    other.restore(saved)
    assert_rows(other, {0: 1, 1: 2})
    other.update(report_of({2: 5}))
    assert_rows(other, {0: 1, 1: 2, 2: 5})


def test_a_memory_of_nobody_is_saved_and_restored(folder):
    memory = make(folder)
    saved = memory.save()
    memory.update(report_of({0: 1}))
    memory.restore(saved)
    assert_rows(memory, {})


@pytest.mark.parametrize("num_saves", [2, 3, 4, 5])
def test_both_that_are_kept_can_be_gone_back_to_after_a_restart(folder, num_saves):
    memory, saved = make(folder), []
    for number in range(1, num_saves + 1):
        memory.update(report_of({0: number}))
        saved.append(memory.save())
    other = make(folder)
    other.restore(saved[-1], earlier=saved[-2:-1])
    assert_rows(other, {0: num_saves})
    other.update(report_of({0: 8, 4: 8, 2: 8}))
    # The later checkpoint turns out to be broken: the next restart takes the earlier.
    third = make(folder)
    third.restore(saved[-2])
    assert_rows(third, {0: num_saves - 1})


def test_what_is_saved_is_all_there_is_in_memory_and_none_in_a_file(tmp_path):
    memories = [make(None), make(tmp_path)]
    for memory in memories:
        memory.update(report_of({4: 1, 2: 2}))
    in_memory, in_file = (memory.save() for memory in memories)
    assert in_memory["rows"].shape == (2, ROW_BYTES)
    assert in_file["rows"].shape == (0, ROW_BYTES)
    for saved in (in_memory, in_file):
        assert saved["slots"].dtype == np.int32
        assert saved["slots"].tolist() == [-1, -1, 1, -1, 0]


def file_size(folder):
    return os.path.getsize(folder / FILE_NAME)


def test_the_file_grows_with_the_clients_that_have_taken_part(tmp_path):
    memory = ClientMemory(ROW_TYPE, 1_000_000, tmp_path)
    assert file_size(tmp_path) == 0
    for count, clients in enumerate([{999_999: 1}, {5: 2}, {999_999: 3}, {5: 4}]):
        memory.update(report_of(clients))
        assert file_size(tmp_path) == STRIDE * min(count + 1, 2)


def test_the_file_has_room_for_what_is_kept_and_no_more(tmp_path):
    memory = make(tmp_path)
    for number in range(1, 30):
        memory.update(report_of(dict.fromkeys(range(NUM_CLIENTS), number)))
        memory.save()
    # Those of two saved states, of which the last are the current ones, and those that
    # replace them.
    assert file_size(tmp_path) <= STRIDE * 3 * NUM_CLIENTS


def test_in_memory_there_is_one_row_per_client():
    memory = make(None)
    for number in range(1, 5):
        memory.update(report_of(dict.fromkeys(range(NUM_CLIENTS), number)))
        assert memory.save()["rows"].shape == (NUM_CLIENTS, ROW_BYTES)


@st.composite
def histories(draw):
    """Rounds, saves, and ways back to one of the last two saves."""
    found = []
    for number in range(1, draw(st.integers(5, 30))):
        kind = draw(st.sampled_from(["round", "save", "back", "restart"]))
        clients = sorted(draw(st.sets(st.integers(0, NUM_CLIENTS - 1))))
        rejected = draw(st.sets(st.sampled_from(clients))) if clients else set()
        found.append((kind, dict.fromkeys(clients, number), rejected))
    return found


@pytest.mark.parametrize("in_file", [False, True])
@hypothesis.given(history=histories())
@hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
def test_every_history_is_that_of_a_dictionary(tmp_path_factory, in_file, history):
    folder = tmp_path_factory.mktemp("memory") if in_file else None
    memory, rows, checkpoints = make(folder), {}, []
    for kind, numbers, rejected in history:
        # Each action comes after a round.
        memory.update(report_of(numbers, rejected))
        rows = rows | {k: n for k, n in numbers.items() if k not in rejected}
        if kind == "save":
            checkpoints = [*checkpoints, (memory.save(), rows)][-2:]
        elif kind in ("back", "restart") and checkpoints:
            # "back" is to the earlier one, after which the later is no more.
            if kind == "back":
                checkpoints = checkpoints[:1]
            *earlier, (saved, rows) = checkpoints
            memory = make(folder)
            memory.restore(saved, [each for each, _ in earlier])
        assert_rows(memory, rows)


def test_of_other_clients_or_rows_is_refused(folder):
    saved = make(folder).save()
    for other in (
        ClientMemory(ROW_TYPE, NUM_CLIENTS + 1),
        ClientMemory(tff.TensorType(np.float32, [6]), NUM_CLIENTS),
    ):
        with pytest.raises(
            ClientMemoryError, match="5 clients and rows of 25 bytes was"
        ):
            other.restore(saved)


def test_what_is_in_a_file_is_not_restored_in_memory(tmp_path):
    memory = make(tmp_path)
    memory.update(report_of({0: 1}))
    saved = memory.save()
    other = make(None)
    with pytest.raises(ClientMemoryError):
        other.restore(saved)
        other.row(0)


def test_a_damaged_row_is_an_error_and_the_others_are_whole(tmp_path):
    memory = make(tmp_path)
    memory.update(report_of({0: 1, 1: 2}))
    saved = memory.save()
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[STRIDE + 3] ^= 1
    path.write_bytes(content)
    other = make(tmp_path)
    other.restore(saved)
    assert other.row(0)["seen"]
    with pytest.raises(
        ClientMemoryError, match="client_memory.rows is damaged: a client's"
    ):
        other.row(1)


@pytest.mark.parametrize("size", [0, STRIDE + 7, 2 * STRIDE - 1])
def test_a_file_that_is_too_short_is_an_error(tmp_path, size):
    memory = make(tmp_path)
    memory.update(report_of({0: 1, 1: 2}))
    saved = memory.save()
    os.truncate(tmp_path / FILE_NAME, size)
    memory.restore(saved)
    with pytest.raises(ClientMemoryError, match="is damaged"):
        memory.row(1)


def test_a_file_that_is_gone_is_an_error(tmp_path):
    memory = make(tmp_path)
    memory.update(report_of({0: 1}))
    saved = memory.save()
    os.remove(tmp_path / FILE_NAME)
    other = make(tmp_path)
    other.restore(saved)
    with pytest.raises(ClientMemoryError, match="is damaged"):
        other.row(0)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make(tmp_path / "file" / "folder")


@contextlib.contextmanager
def largest_file(size):
    """Files can have so many bytes at most, as on a disk that is full."""
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    old_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard_limit))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (old_limit, hard_limit))
    signal.signal(signal.SIGXFSZ, old_handler)


def test_a_full_disk_is_an_error_and_what_was_saved_is_whole(tmp_path):
    # Rows of 400 kB, of which two and a half fit.
    row_type = tff.TensorType(np.float64, [50_000])
    memory = ClientMemory(row_type, NUM_CLIENTS, tmp_path)

    def report(*numbers):
        return {
            "client_index": np.arange(len(numbers)),
            "accepted": np.full(len(numbers), True),
            "row": np.array([np.full(50_000, n, np.float64) for n in numbers]),
        }

    memory.update(report(1, 2))
    saved = memory.save()
    with largest_file(1_000_000), pytest.raises(OSError, match="File too large"):
        memory.update(report(3))
    memory.restore(saved)
    assert [np.unique(memory.row(k)).tolist() for k in range(3)] == [[1], [2], [0]]


def test_the_memory_of_a_process_has_rows_of_the_type_that_it_asks_for(tmp_path):
    model = problems.linear_model(np.float32)
    process = tff_algos.build_scaffold(model, client_learning_rate=0.1, num_clients=3)
    memory = ClientMemory.of_process(process, 3, tmp_path)
    vector, bias = memory.row(2)
    assert vector.shape == (5,) and bias.shape == () and memory.row_bytes == 24


def test_a_process_whose_clients_remember_nothing_is_refused():
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    process = tff_algos.build_fed_avg(problems.linear_model(), sgd)
    with pytest.raises(ValueError, match="clients have a memory, found .*float64"):
        ClientMemory.of_process(process, 3)


@pytest.mark.parametrize("number", [-1, NUM_CLIENTS])
def test_a_number_that_no_client_has_is_refused(folder, number):
    memory = make(folder)
    memory.update(report_of({NUM_CLIENTS - 1: 1}))
    with pytest.raises((ValueError, IndexError)):
        memory.row(number)
    with pytest.raises((ValueError, IndexError)):
        memory.update(report_of({number: 2}))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_clients": 0}, "num_clients=0 .*: expected an integer >= 1"),
        ({"num_clients": 3, "keep": 0}, "keep=0 .*: expected an integer >= 1"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ClientMemory(ROW_TYPE, **kwargs)


def test_rows_beyond_two_gigabytes_are_where_they_belong(tmp_path):
    records = client_memory._FileRecords(tmp_path / "rows", record_bytes=20)
    far = np.int32(2**27)  # At 32 bytes each; the file is sparse.
    records.write(far, b"a" * 20, 1)
    records.write(np.int32(0), b"b" * 20, 2)
    assert (tmp_path / "rows").stat().st_size == 32 * (2**27 + 1) > 2**31
    assert records.read(far, 1) == b"a" * 20
    assert records.read(np.int32(0), 2) == b"b" * 20


def test_a_state_older_than_those_that_are_kept_is_an_error(tmp_path):
    memory = make(tmp_path)
    saved = []
    for number in range(1, 5):
        memory.update(report_of({0: number}))
        saved.append(memory.save())
    for state, number in zip(saved[-2:], (3, 4), strict=True):
        other = make(tmp_path)
        other.restore(state)
        assert other.row(0)["weights"][0][0, 0] == number
    other = make(tmp_path)
    other.restore(saved[0])
    with pytest.raises(ClientMemoryError, match="another row has taken the place"):
        other.row(0)


def test_a_second_memory_in_the_same_file_is_an_error(tmp_path):
    one, two = make(tmp_path), make(tmp_path)
    one.update(report_of({0: 1}))
    two.update(report_of({3: 1}))
    assert two.row(3)["seen"]
    with pytest.raises(ClientMemoryError, match="another client memory"):
        one.row(0)


@pytest.mark.parametrize("directory", [None, "file"])
def test_reports_that_cannot_be_stored_change_nothing(tmp_path, directory):
    memory = make(directory and tmp_path)
    memory.update(report_of({0: 1, 1: 1}))
    twice = report_of({0: 5, 1: 6})
    twice["client_index"] = np.array([1, 1], np.int32)
    of_another_dtype, swapped = report_of({0: 5, 1: 6}), report_of({0: 5, 1: 6})
    matrices, numbers = of_another_dtype["row"]["weights"]
    of_another_dtype["row"]["weights"] = (matrices.astype(np.float64), numbers)
    swapped["row"]["weights"] = (numbers, matrices)
    for report, error, message in (
        (twice, ValueError, "each client once in a round, found client 1 2 times"),
        (report_of({0: 5, NUM_CLIENTS: 6}), ValueError, "found 5"),
        (of_another_dtype, TypeError, r"found bool\[2\], float64\[2, 2, 2\]"),
        (swapped, TypeError, r"found bool\[2\], float64\[2\], float32\[2, 2, 2\]"),
    ):
        with pytest.raises(error, match=message):
            memory.update(report)
    assert memory.row(0)["weights"][0][0, 0] == memory.row(1)["weights"][0][0, 0] == 1


def test_another_measurement_than_the_memorys_is_named():
    memory = make(None)
    with pytest.raises(ValueError, match="'memory'.*found aggregator, client_work"):
        memory.update({"aggregator": (), "client_work": {}})


def test_what_was_saved_in_memory_is_restored_into_a_file(tmp_path):
    memory = make(None)
    memory.update(report_of({0: 1, 3: 2}))
    memory.update(report_of({3: 5, 1: 4}))
    other = make(tmp_path)
    other.restore(memory.save())
    assert_rows(other, {0: 1, 1: 4, 3: 5})
    other.update(report_of({0: 6}))
    assert_rows(other, {0: 6, 1: 4, 3: 5})
