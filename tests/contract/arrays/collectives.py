"""Every collective: values, dtypes and odd sizes, on arrays of NumPy and of a device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.contract.arrays.values import CHUNK, SIZES, Make, everyone, mine, numpy_of, same, with_each_kind
from tests.contract.world import Cases
from tests.fakes import arrays as device

import horovod.arrays as hvd

FRAMEWORK = "horovod.arrays"
CASES = Cases()
add = with_each_kind(CASES)

DTYPES = [
    *("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"),
    ml_dtypes.bfloat16,
]
MOVED = [
    *("uint32", "uint64", "complex64", "complex128"),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
]
OPS = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}


@add
def allreduce(make: Make) -> None:
    for dtype in DTYPES:
        for op, expected in OPS.items():
            array = make(mine(hvd.rank(), (5, 3), dtype))
            with np.errstate(over="ignore"):
                result = expected(everyone((5, 3), dtype), axis=0).astype(dtype)  # type: ignore[operator]
            same(hvd.allreduce(array, op=op), result, array)
            same(array, mine(hvd.rank(), (5, 3), dtype), array)
            assert hvd.allreduce_(array, op=op) is array
            same(array, result, array)
    for dtype in DTYPES[:6]:
        assert isinstance(dtype, str)
        array = make(np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype))
        same(hvd.allreduce(array), numpy_of(array), array)
    truth = make(np.array([hvd.rank() == 0, False, True]))
    same(hvd.allreduce(truth, op=hvd.Max), np.array([True, False, True]), truth)


@add
def what_no_reduction_has_is_moved(make: Make) -> None:
    n, me = hvd.size(), hvd.rank()
    for dtype in MOVED:
        array = make(mine(me, (n, 3), dtype))
        stacked = everyone((n, 3), dtype)
        same(hvd.allgather(array), stacked.reshape(-1, 3), array)
        same(hvd.broadcast(array, n - 1), stacked[n - 1], array)
        same(hvd.alltoall(array), stacked[:, me], array)
        assert hvd.broadcast_(array, 0) is array
        same(array, stacked[0], array)
        with pytest.raises(ValueError, match="is not supported in reductions: it is only moved"):
            hvd.allreduce(array)
        with pytest.raises(ValueError, match="is not supported in reductions: it is only moved"):
            hvd.reducescatter(array, op=hvd.Sum)


@add
def averages_and_factors(make: Make) -> None:
    array = make(mine(hvd.rank(), 7))
    same(hvd.allreduce(array), hvd.allreduce(numpy_of(array)), array)
    scaled = hvd.allreduce(array, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    same(scaled, everyone(7).sum(0) * np.float32(0.5), array)
    if hvd.size() & (hvd.size() - 1) == 0:
        random = np.random.default_rng(hvd.rank()).standard_normal(CHUNK + 9).astype(np.float32)
        array = make(random)
        same(hvd.allreduce(array, op=hvd.Adasum), hvd.allreduce(random, op=hvd.Adasum), array)


@add
def sizes(make: Make) -> None:
    size = hvd.size()
    for count in SIZES:
        values = mine(hvd.rank(), count)
        array = make(values)
        total = everyone(count).sum(0)
        same(hvd.allreduce(array, op=hvd.Sum), total, array)
        same(hvd.allgather(array), everyone(count).reshape(-1), array)
        same(hvd.broadcast(array, size - 1), mine(size - 1, count), array)
        share = np.array_split(total, size)[hvd.rank()]
        same(hvd.reducescatter(array, op=hvd.Sum), share, array)
        same(hvd.reduce(array, 0, op=hvd.Sum), total if hvd.rank() == 0 else values, array)
        splits = [len(part) for part in np.array_split(values, size)]
        rows, received = hvd.alltoall(array, splits)
        came = [np.array_split(mine(rank, count), size)[hvd.rank()] for rank in range(size)]
        same(rows, np.concatenate(came), array)
        same(received, np.array([len(part) for part in came], np.int32), received)


@add
def bits_are_those_of_arrays_in_host_memory(make: Make) -> None:
    """Sums of floats depend on the order in which they are made."""
    random = np.random.default_rng(100 + hvd.rank())
    for dtype in ("float16", "float32", "float64", ml_dtypes.bfloat16):
        values = random.standard_normal((2 * CHUNK + 5,)).astype(dtype)
        same(hvd.allreduce(make(values)), hvd.allreduce(values.copy()), make(values[:1]))
        same(hvd.reducescatter(make(values)), hvd.reducescatter(values), make(values[:1]))
        root = hvd.size() - 1
        same(hvd.reduce(make(values), root), hvd.reduce(values, root), make(values[:1]))


@add
def rows_of_different_numbers(make: Make) -> None:
    rank, size = hvd.rank(), hvd.size()
    array = make(mine(rank, (rank, 4)))  # no row on rank 0
    same(hvd.allgather(array), np.concatenate([mine(each, (each, 4)) for each in range(size)]), array)
    first, second = hvd.grouped_allgather([array, make(mine(rank, (2, 3), np.int64))])
    same(first, np.concatenate([mine(each, (each, 4)) for each in range(size)]), array)
    same(second, everyone((2, 3), np.int64).reshape(-1, 3), array)
    splits = list(range(size))
    array = make(mine(rank, (sum(splits) + 2, 3)))  # two rows stay
    rows, received = hvd.alltoall(array, splits)
    begin = sum(splits[:rank])
    came = [mine(each, (sum(splits) + 2, 3))[begin : begin + rank] for each in range(size)]
    same(rows, np.concatenate(came), array)
    assert received.tolist() == [rank] * size


@add
def groups(make: Make) -> None:
    shapes = [(3,), (0, 2), (), (CHUNK + 1,), (2, 2)]
    arrays = [make(mine(hvd.rank(), shape)) for shape in shapes]
    for got, shape in zip(hvd.grouped_allreduce(arrays, op=hvd.Sum), shapes, strict=True):
        same(got, everyone(shape).sum(0), arrays[0])
    rows = [array for array, shape in zip(arrays, shapes, strict=True) if shape]
    shares = hvd.grouped_reducescatter(rows, op=hvd.Sum)
    for got, shape in zip(shares, [shape for shape in shapes if shape], strict=True):
        same(got, np.array_split(everyone(shape).sum(0), hvd.size())[hvd.rank()], arrays[0])
    for got, shape in zip(hvd.grouped_reduce_(arrays, 0, op=hvd.Sum), shapes, strict=True):
        same(got, everyone(shape).sum(0) if hvd.rank() == 0 else mine(hvd.rank(), shape), arrays[0])


@add
def an_array_twice_in_a_group(make: Make) -> None:
    array = make(mine(hvd.rank(), CHUNK + 3))
    other = make(mine(hvd.rank(), 4))
    results = hvd.grouped_allreduce_([array, other, array], op=hvd.Sum)
    assert results[0] is array is results[2]
    same(array, everyone(CHUNK + 3).sum(0), array)
    same(other, everyone(4).sum(0), array)
    once, again = hvd.grouped_allreduce([other, other], op=hvd.Max)
    same(once, everyone(4).sum(0), other)
    same(again, everyone(4).sum(0), other)


@add
def asynchronous_forms(make: Make) -> None:
    rank, size = hvd.rank(), hvd.size()
    given = [make(mine(rank, 5)) for _ in range(10)]
    handles = {
        "allreduce": hvd.allreduce_async(given[0], op=hvd.Sum),
        "in place": hvd.allreduce_async_(given[1], op=hvd.Sum),
        "allgather": hvd.allgather_async(given[2]),
        "broadcast": hvd.broadcast_async(given[3], 0),
        "broadcast in place": hvd.broadcast_async_(given[4], 0),
        "reducescatter": hvd.reducescatter_async(given[5], op=hvd.Sum),
        "reduce": hvd.reduce_async(given[6], 0, op=hvd.Sum),
        "reduce in place": hvd.reduce_async_(given[7], 0, op=hvd.Sum),
        "alltoall": hvd.alltoall_async(given[8], [0] * size),
        "group": hvd.grouped_allreduce_async(given[:1] * 2, op=hvd.Sum),
    }
    total = everyone(5).sum(0)
    at_root = total if rank == 0 else mine(rank, 5)
    expected = {
        "allreduce": total,
        "in place": total,
        "allgather": everyone(5).reshape(-1),
        "broadcast": mine(0, 5),
        "broadcast in place": mine(0, 5),
        "reducescatter": np.array_split(total, size)[rank],
        "reduce": at_root,
        "reduce in place": at_root,
    }
    for what in reversed(list(handles)):
        result: Any = hvd.synchronize(handles[what])
        if what == "alltoall":
            same(result[0], np.zeros(0, np.float32), given[0])
        elif what == "group":
            for each in result:
                same(each, total, given[0])
        else:
            same(result, expected[what], given[0])
    for handle in handles.values():
        assert hvd.synchronize(handle) is None  # consumed


@add
def process_sets(make: Make) -> None:
    if hvd.size() < 2:
        return
    last = hvd.size() - 1
    ranks = [0, last] if last > 1 else [last]
    some = hvd.add_process_set(ranks)
    if some.included():
        members = np.stack([mine(rank, CHUNK + 1) for rank in ranks])
        array = make(mine(hvd.rank(), CHUNK + 1))
        same(hvd.allreduce(array, op=hvd.Sum, process_set=some), members.sum(0), array)
        same(hvd.allgather(array, process_set=some), members.reshape(-1), array)
        same(hvd.broadcast(array, last, process_set=some), members[-1], array)
        hvd.barrier(process_set=some)
        assert hvd.broadcast_object({"root": hvd.rank()}, last, process_set=some) == {"root": last}
        assert hvd.allgather_object(hvd.rank(), process_set=some) == ranks
    hvd.barrier()
    assert hvd.remove_process_set(some)


@add
def ranks_that_join(make: Make) -> None:
    if hvd.size() < 2:
        return
    hvd.allreduce(make(mine(0, 3)))
    for first in (0, hvd.size() - 1):
        if hvd.rank() != first:
            others = np.stack([mine(rank, CHUNK + 5) for rank in range(hvd.size()) if rank != first])
            for _ in range(2):
                array = make(mine(hvd.rank(), CHUNK + 5))
                same(hvd.allreduce(array, op=hvd.Sum), others.sum(0), array)
            handle = hvd.grouped_allreduce_async_([array, array], op=hvd.Sum)
            hvd.synchronize(handle)
        assert hvd.join() in range(hvd.size())


@add
def compressed(make: Make) -> None:
    if make is np.array:
        array = make(mine(hvd.rank(), 6))
        same(hvd.allreduce(array, compression=hvd.Compression.fp16, op=hvd.Sum), everyone(6).sum(0), array)
        (group,) = hvd.grouped_allreduce([array], compression=hvd.Compression.fp16, op=hvd.Sum)
        same(group, everyone(6).sum(0), array)


@CASES.add
def both_kinds_in_one_step() -> None:
    """Operations of one kind after those of the other, all under way."""
    handles = []
    for step in range(6):
        values = mine(hvd.rank(), CHUNK + step)
        array = device.array(values) if step % 2 else values
        handles.append(hvd.allreduce_async(array, op=hvd.Sum, name=f"step.{step}"))
    for step, handle in enumerate(handles):
        assert numpy_of(hvd.synchronize(handle)).tobytes() == everyone(CHUNK + step).sum(0).tobytes()
