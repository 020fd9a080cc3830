"""What `horovod.arrays` takes and refuses, in a world of one; and that it is called like `horovod.torch`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import horovod.arrays as hvd
import horovod.torch as torch_hvd


@pytest.fixture(autouse=True, scope="module")
def world_of_one() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


class HostArray:
    """Of a library that knows DLPack only, and is called ``library`` if it says so."""

    def __init__(self, values: Any, library: bool = True, **dlpack: Any) -> None:
        self.values = np.asarray(values)
        self.dtype = self.values.dtype
        self.dlpack = dlpack
        if library:
            self.__array_namespace__ = lambda: LIBRARY

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.dlpack.get("device", (1, 0))
        return device

    def __dlpack__(self, **how: Any) -> Any:
        if "max_version" in how and self.dlpack.get("old"):
            raise TypeError("unexpected keyword argument 'max_version'")
        if "error" in self.dlpack:
            raise self.dlpack["error"]
        return self.values.__dlpack__(**how)


LIBRARY = SimpleNamespace(
    empty=lambda shape, dtype: HostArray(np.empty(shape, dtype)),
    from_dlpack=lambda exporter: HostArray(np.from_dlpack(exporter)),
)


def on_device(**changes: Any) -> Any:
    """An array of a device that is not there: enough for what is refused before anybody looks."""
    interface = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": 1} | changes
    return SimpleNamespace(
        __cuda_array_interface__=interface, __dlpack_device__=lambda: (2, 0), dtype=np.dtype("f4")
    )


@pytest.mark.parametrize("old", [False, True])
def test_arrays_of_another_library_in_host_memory(old: bool) -> None:
    array = HostArray(np.arange(6.0).reshape(3, 2), old=old)
    for result in (hvd.allreduce(array), hvd.allgather(array), hvd.reducescatter(array), hvd.alltoall(array)):
        assert isinstance(result, HostArray)
        assert result.values.tolist() == array.values.tolist()
    assert hvd.allreduce_(array, prescale_factor=2.0) is array
    assert array.values.tolist() == [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]


def test_arrays_of_nobody_in_host_memory_become_numpys() -> None:
    array = HostArray(np.arange(3, dtype=np.int32), library=False)
    for result in (hvd.allreduce(array), hvd.allgather(array)):
        assert isinstance(result, np.ndarray)
        assert result.dtype == np.int32
        assert result.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, ml_dtypes.bfloat16])
def test_gathered_arrays_of_numpy_have_their_dtype_and_may_be_written(dtype: Any) -> None:
    for shape in ((2, 3), (0, 3)):
        result = hvd.allgather(np.ones(shape, dtype))
        assert result.dtype == dtype
        assert result.shape == shape
        result[...] = 0


def test_memory_of_a_result_lives_as_long_as_its_views() -> None:
    tail = hvd.allgather(np.arange(1000))[990:]
    others = [hvd.allgather(np.zeros(1000)) for _ in range(20)]
    assert tail.tolist() == list(range(990, 1000))
    assert len(others) == 20


READ_ONLY = np.zeros(2)
READ_ONLY.flags.writeable = False
BAD = {
    "list": ([1.0], "Expected an array, got list: .* Pass numpy.asarray"),
    "number": (3.0, "Expected an array, got float"),
    "object": (np.array([None]), "type object is not supported"),
    "long complex": (np.zeros(2, np.clongdouble), "type complex256 is not supported"),
    "text": (np.array(["a"]), "type <U1 is not supported"),
    "structured": (np.zeros(2, [("a", "i4")]), "is not supported"),
    "byte-swapped": (np.zeros(2, ">f4"), "other machines"),
    "strided": (np.zeros((2, 3)).T, "required to be contiguous.*ascontiguousarray"),
    "masked": (np.ma.masked_array([1.0], [True]), "masked.*filled"),
    "torch": (torch.zeros(2), "does not take torch.Tensor. horovod.torch takes"),
    "dlpack strided": (HostArray(np.zeros((2, 3)).T), "required to be contiguous"),
    "dlpack of OpenCL": (HostArray([1.0], device=(4, 0)), "memory of OpenCL: memory of the host and of CUDA"),
    "dlpack of an unknown device": (HostArray([1.0], device=(99, 0)), "device type 99 of DLPack"),
    "dlpack that refuses": (HostArray([1.0], error=BufferError("lazy")), "does not export its memory: lazy"),
    "mask of a device": (on_device(mask=on_device()), "has a mask"),
    "stream 0": (on_device(stream=0), "stream 0, which has no meaning"),
    "stream of the thread": (on_device(stream=2), "default stream of its thread"),
    "long float of a device": (on_device(typestr="<f16"), "type float128 is not supported"),
    "byte-swapped of a device": (on_device(typestr=">f4"), "other machines"),
    "strided of a device": (on_device(shape=(2, 2), strides=(4, 8)), "required to be contiguous"),
}


@pytest.mark.parametrize(("array", "text"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_exchanged_is_refused_in_a_sentence(array: Any, text: str) -> None:
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.reducescatter):
        with pytest.raises(ValueError, match=text):
            call(array)
    with pytest.raises(ValueError, match=text):
        hvd.grouped_allreduce([np.zeros(2), array])


@pytest.mark.parametrize("array", [READ_ONLY, HostArray(READ_ONLY)], ids=["numpy", "dlpack"])
def test_read_only_arrays_are_inputs_and_no_results(array: Any) -> None:
    for call in (hvd.allreduce_, hvd.allreduce_async_):
        with pytest.raises(ValueError, match="read-only, and the result"):
            call(array)
    with pytest.raises(ValueError, match="read-only"):
        hvd.broadcast_(array, 0)
    with pytest.raises(ValueError, match="read-only"):
        hvd.grouped_reduce_([np.zeros(2), array], 0)
    assert type(hvd.allreduce(array)) is type(array)
    assert type(hvd.reducescatter(array)) is type(array)


def test_strides_of_dimensions_that_do_not_count() -> None:
    column = np.zeros((4, 1))[::1, :]
    assert hvd.allreduce(HostArray(column)).values.shape == (4, 1)
    assert hvd.allreduce(HostArray(np.zeros((0, 5)).T)).values.shape == (5, 0)


def test_splits() -> None:
    rows, received = hvd.alltoall(np.arange(3), np.array([2], np.int64))
    assert (rows.tolist(), received.tolist(), received.dtype) == ([0, 1], [2], np.int32)
    for splits, text in (
        ([1.5], "must be integers"),
        ([[1]], "one dimension"),
        ([1, 2], "differs from that"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(np.arange(3), splits)


def test_functions_are_called_like_those_of_torch() -> None:
    """The same names and arguments, but for what autograd and sparse tensors need."""
    names = set(vars(torch_hvd.mpi_ops)["__all__"]) - {"sparse_allreduce_async"}
    assert names == set(vars(hvd.mpi_ops)["__all__"])
    for name in sorted(names):
        mine, theirs = getattr(hvd, name, None), getattr(torch_hvd, name, None)
        if inspect.isfunction(mine):
            assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)  # type: ignore[arg-type]
