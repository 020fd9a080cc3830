"""In which order things happen on a device: streams, threads, devices; and what holds memory."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
from tests.contract.arrays.values import CHUNK, everyone, mine, same
from tests.contract.world import Cases
from tests.fakes import arrays as device

import horovod.arrays as hvd

FRAMEWORK = "horovod.arrays"
CASES = Cases()
COUNT = CHUNK + 11
LIMIT_S = 20.0


def total(count: int = COUNT) -> np.ndarray[Any, Any]:
    total: np.ndarray[Any, Any] = everyone(count).sum(0)
    return total


def until_done(handle: int) -> None:
    limit = time.monotonic() + LIMIT_S
    while not hvd.poll(handle):
        assert time.monotonic() < limit, "not done"
        time.sleep(0.001)


@CASES.add
def an_operation_comes_after_kernels_before_it_and_before_those_after_it() -> None:
    array = device.array(mine(hvd.rank(), COUNT))
    array.add(1.0)
    hvd.allreduce_(array, op=hvd.Sum)
    array.add(2.0)
    same(array, total() + np.float32(hvd.size() + 2), array)


@CASES.add
def nobody_waits_for_the_device_when_an_operation_is_submitted() -> None:
    array = device.array(mine(hvd.rank(), COUNT))
    array.stream.synchronize()
    with device.holding(array.stream):
        array.add(1.0)
        handle = hvd.allreduce_async_(array, op=hvd.Sum)
        assert not hvd.poll(handle)
        assert not array.stream.query()
    until_done(handle)
    assert hvd.synchronize(handle) is array
    same(array, total() + np.float32(hvd.size()), array)


@CASES.add
def results_come_in_the_order_of_the_stream_without_a_wait_on_the_host() -> None:
    array = device.array(mine(hvd.rank(), COUNT))
    with device.using(device.Stream()) as later:
        handle = hvd.allgather_async(array)
        until_done(handle)
        with device.holding(later):
            gathered = hvd.synchronize(handle)  # into a stream that does not run now
            assert gathered.stream is later
            gathered.add(1.0)
            assert not later.query()
        same(gathered, everyone(COUNT).reshape(-1) + np.float32(1), array)


@CASES.add
def arrays_of_the_default_stream() -> None:
    for named in (1, None):
        array = device.on_default(mine(hvd.rank(), COUNT), named=named)
        hvd.allreduce_(array.add(1.0), op=hvd.Sum)
        array.add(1.0)
        same(array, total() + np.float32(hvd.size() + 1), array)
        with device.using(device.Stream(0, 0)):
            same(hvd.allgather(array).numpy(), np.tile(array.numpy(), hvd.size()), np.zeros(0))


@CASES.add
def a_result_of_no_stream_is_there_when_it_is_waited_for() -> None:
    """Streams of the fake wait for no default stream."""
    for form in ("blocking", "asynchronous", "gathered", "group"):
        array = device.array(mine(hvd.rank(), COUNT))
        array.stream.synchronize()  # what who asks for no order has to do
        array.named = None
        if form == "blocking":
            hvd.allreduce_(array, op=hvd.Sum)
        elif form == "asynchronous":
            hvd.synchronize(hvd.allreduce_async_(array, op=hvd.Sum))
        elif form == "group":
            hvd.grouped_allreduce_([array, device.array(mine(0, 3))], op=hvd.Sum)
        else:
            gathered = hvd.allgather(array)
            same(gathered, everyone(COUNT).reshape(-1), array)
            continue
        same(array, total(), array)


@CASES.add
def a_group_of_arrays_in_host_memory_and_on_a_device() -> None:
    for host_first in (True, False):
        arrays: list[Any] = [mine(hvd.rank(), COUNT), device.array(mine(hvd.rank(), COUNT))]
        if not host_first:
            arrays.reverse()
        for got, given in zip(hvd.grouped_allreduce(arrays, op=hvd.Sum), arrays, strict=True):
            same(got, total(), given)


@CASES.add
def arrays_that_know_dlpack_only() -> None:
    array = device.array(mine(hvd.rank(), COUNT), kind=device.DlpackArray)
    array.add(1.0)
    result = hvd.allreduce(array, op=hvd.Sum)
    same(result.numpy(), total() + np.float32(hvd.size()), np.zeros(0))


@CASES.add
def threads_submit_on_streams_of_their_own() -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                array = device.array(mine(hvd.rank(), 1000 + number))  # in the stream of this thread
                array.add(float(number))
                hvd.allreduce_(array, name=f"thread.{number}.{step}", op=hvd.Sum)
                array.add(1.0)
                expected = total(1000 + number) + np.float32(hvd.size() * number + 1)
                same(array, expected, array)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@CASES.add
def a_group_across_two_devices() -> None:
    for default in (False, True):
        make = device.on_default if default else device.array
        arrays = [make(mine(hvd.rank(), COUNT), number) for number in (0, 1, 0, 1)]
        for number, array in enumerate(arrays):
            array.named = 1 if default else array.named
            array.add(float(number))
        hvd.grouped_allreduce_(arrays, op=hvd.Sum)
        for number, array in enumerate(arrays):
            array.add(1.0)
            same(array, total() + np.float32(hvd.size() * number + 1), array)


@CASES.add
def a_stream_of_the_second_device_waits_for_a_group_that_begins_on_the_first() -> None:
    """Both are default streams, which have one name on all devices."""
    first = device.on_default(mine(hvd.rank(), 8), 0, 1)
    second = device.on_default(mine(hvd.rank(), 9 * CHUNK), 1, 1)
    for _ in range(5):
        handle = hvd.grouped_allreduce_async_([first, second], op=hvd.Max)
        hvd.synchronize(handle)
        second.add(1.0)
        same(second, everyone(9 * CHUNK).max(0) + np.float32(1), second)
        second = device.on_default(mine(hvd.rank(), 9 * CHUNK), 1, 1)


@CASES.add
def results_on_the_second_device() -> None:
    for kind in (device.Array, device.PlainArray, device.DlpackArray):
        array = device.array(mine(hvd.rank(), 6), 1, kind)
        gathered = hvd.allgather(array)
        assert gathered.device == 1
        same(gathered.numpy(), everyone(6).reshape(-1), np.zeros(0))
        assert hvd.allreduce(array).device == 1


@CASES.add
def handles_that_nobody_waits_for() -> None:
    for step in range(8):
        hvd.allreduce_async_(device.array(mine(hvd.rank(), COUNT)), name=f"lost.{step}", op=hvd.Sum)
        hvd.allgather_async(device.array(mine(hvd.rank(), 100)), name=f"lost.rows.{step}")
    array = device.array(mine(hvd.rank(), 10))
    same(hvd.allreduce(array, op=hvd.Sum), total(10), array)
    hvd.barrier()


@CASES.add
def memory_does_not_grow() -> None:
    array = device.array(mine(hvd.rank(), 300))

    def work(steps: int) -> None:
        for _ in range(steps):
            hvd.allreduce_(array, op=hvd.Max)
            hvd.allgather(array)
            hvd.synchronize(hvd.allreduce_async(array))
            hvd.grouped_allreduce_([array, array], op=hvd.Max)

    work(20)
    gc.collect()
    before = device.counters()
    work(150)  # 600 operations
    gc.collect()
    array.stream.synchronize()
    after = device.counters()
    assert after.allocations <= before.allocations
    assert after.streams == before.streams
    assert after.events <= before.events + 64
    assert after.pinned_bytes <= before.pinned_bytes + (1 << 20)


@CASES.add
def an_exception_in_between_leaves_the_others_working() -> None:
    array = device.array(mine(hvd.rank(), 40))
    handle = hvd.allreduce_async(array, op=hvd.Sum, name="first")
    with pytest.raises(ValueError, match=r"[Nn]ot supported"):
        hvd.grouped_allreduce_([array, np.zeros(2, np.clongdouble)])
    same(hvd.synchronize(handle), total(40), array)
    hvd.barrier()


@CASES.add
def ranks_on_the_cpu_and_on_a_device_for_one_name() -> None:
    if hvd.size() == 1:
        return
    values = mine(hvd.rank(), 5)
    for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall):
        if call is hvd.alltoall:
            values = mine(hvd.rank(), hvd.size())
        array: Any = values if hvd.rank() == 0 else device.array(values)
        with pytest.raises(hvd.HorovodInternalError, match="CPU/GPU device selection") as info:
            call(array, name=f"mixed.{call.__name__}")
        text = str(info.value)
        assert "One rank specified device CPU, but another rank specified device GPU. Rank 0: " in text, text
        assert "on GPU" in text.partition("; rank")[2], text  # those of the others
    same(hvd.allreduce(values, op=hvd.Sum), everyone(len(values)).sum(0), values)
