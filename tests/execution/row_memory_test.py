"""Memory of rows: used again when nothing needs it, and not more than is needed."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.execution import row_memory

FLOAT = np.dtype(np.float32)


def address(array):
    return array.ctypes.data


def test_memory_is_used_again_when_the_array_is_gone():
    memory = row_memory.RowMemory()
    array = memory.take([100, 7], FLOAT)
    place = address(array)
    del array
    again = memory.take([350], np.dtype(np.float64))
    assert address(again) == place
    assert again.shape == (350,)
    assert again.dtype == np.float64
    assert memory.num_bytes == 2800


def test_memory_in_use_is_nobody_elses():
    memory = row_memory.RowMemory()
    one, other = memory.take([50], FLOAT), memory.take([50], FLOAT)
    one[:], other[:] = 1.0, 2.0
    np.testing.assert_array_equal(one, np.ones(50))
    np.testing.assert_array_equal(other, np.full(50, 2.0))
    assert memory.num_bytes == 400


def test_a_tensor_of_the_array_keeps_its_memory():
    memory = row_memory.RowMemory()
    array = memory.take([5], FLOAT)
    array[:] = range(5)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    values = tensor.numpy()
    del array
    memory.take([5], FLOAT)[:] = -1.0
    np.testing.assert_array_equal(tensor, range(5))
    del tensor
    memory.take([5], FLOAT)[:] = -1.0
    np.testing.assert_array_equal(values, range(5))


@pytest.mark.parametrize(
    ("size", "is_used"), [(100, True), (50, True), (49, False), (101, False)]
)
def test_a_free_block_serves_what_fills_half_of_it(size, is_used):
    memory = row_memory.RowMemory()
    place = address(memory.take([100], np.dtype(np.uint8)))
    array = memory.take([size], np.dtype(np.uint8))
    assert (address(array) == place) == is_used


def test_the_smallest_block_that_serves_is_taken():
    memory = row_memory.RowMemory()
    arrays = [memory.take([size], FLOAT) for size in (160, 100, 130)]
    smallest = address(arrays[1])
    del arrays
    assert address(memory.take([90], FLOAT)) == smallest


def test_free_blocks_make_room_for_new_ones():
    memory = row_memory.RowMemory()
    first, second = memory.take([1000], FLOAT), memory.take([300], FLOAT)
    assert memory.num_bytes == 5200
    del first
    # Neither 5,200 nor 2,800 bytes in use are more than there were.
    third = memory.take([400], FLOAT)
    assert memory.num_bytes == 2800
    del second, third
    large = memory.take([5000], FLOAT)
    assert memory.num_bytes == large.nbytes


@pytest.mark.parametrize("shape", [[0], [], [3, 0, 2]])
def test_arrays_may_have_no_or_one_element(shape):
    memory = row_memory.RowMemory()
    for _ in range(2):
        array = memory.take(shape, FLOAT)
        array[...] = 4.0
        np.testing.assert_array_equal(array, np.full(shape, 4.0))


def test_arrays_are_aligned():
    memory = row_memory.RowMemory()
    arrays = [memory.take([size], FLOAT) for size in range(1, 40)]
    assert all(address(array) % 64 == 0 for array in arrays)


def test_threads_get_memory_of_their_own():
    memory = row_memory.RowMemory()
    wrong = []

    def work(number):
        for _ in range(300):
            array = memory.take([1000], FLOAT)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)
            del array

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert memory.num_bytes <= 4 * 4000
