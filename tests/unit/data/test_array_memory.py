"""Memory of arrays that is used again, and only when nobody has them any more."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from horovod.data.parquet.rows import ArrayMemory

SHAPE = (1000, 30)
BYTES = 120_000


def made(memory: ArrayMemory, shape: tuple[int, ...] = SHAPE) -> NDArray[Any]:
    return memory.empty(shape, np.dtype(np.float32))


def test_memory_is_used_again_when_the_last_view_has_gone() -> None:
    memory = ArrayMemory(BYTES)
    array = made(memory)
    assert (array.shape, array.dtype, array.flags.writeable) == (SHAPE, np.dtype(np.float32), True)
    place, row = array.ctypes.data, array[7]
    row[:] = 5.0
    del array
    other = made(memory)
    other[:] = 1.0
    assert other.ctypes.data != place
    assert row.tolist() == [5.0] * 30
    del row
    assert made(memory, (999, 30)).ctypes.data == place


def test_a_tensor_keeps_its_memory() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    memory = ArrayMemory(BYTES)
    tensor = torch.from_numpy(made(memory))[3:5]
    tensor.fill_(2.0)
    made(memory)[:] = 1.0
    made(memory)[:] = 1.0
    assert tensor.eq(2.0).all()


def test_no_more_is_kept_than_is_wanted() -> None:
    memory = ArrayMemory(2 * BYTES)
    arrays = [made(memory) for _ in range(5)]
    del arrays
    large = made(memory, (10_000, 30))  # of which none of them is
    assert len(memory._unused) == 2
    memory.forget()
    assert not memory._unused
    assert large.nbytes == 10 * BYTES


def test_objects_and_small_arrays_have_memory_of_their_own() -> None:
    memory = ArrayMemory(BYTES)
    texts = memory.empty((10_000,), np.dtype(object))
    assert texts.tolist() == [None] * 10_000
    del texts
    made(memory, (3,))
    made(memory, (0, 3))
    assert memory._returned.empty()


def test_arrays_that_go_in_other_threads_and_in_the_collector_come_back() -> None:
    memory = ArrayMemory(100 * BYTES)

    class Cycle:
        def __init__(self) -> None:
            self.me, self.array = self, made(memory)

    def many() -> None:
        for _ in range(50):
            Cycle().array[:] = 1.0

    threads = [threading.Thread(target=many) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    gc.collect()
    made(memory)
    assert 0 < len(memory._unused) < 150
