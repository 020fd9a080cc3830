"""Tensors of a device in the order of streams. Only where ``FARANDOLE_TEST_DEVICE`` names one."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.torch.frontend import current_stream

CASES = Cases()
ON_FAKE = os.environ.get("FARANDOLE_TEST_DEVICE") == "fake"
LIMIT_S = 20.0
ROUNDS = 20
SLEEP_CYCLES = 20_000_000

if ON_FAKE:
    from tests.fakes.torch import device as fake

    Stream: Any = fake.Stream
    use: Any = fake.stream
else:
    Stream, use = torch.cuda.Stream, torch.cuda.stream


def here() -> int:
    """The number of this rank's device."""
    index = torch.get_default_device().index
    assert index is not None
    return index


def new_stream() -> Any:
    return Stream(here())


def delay(stream: Any) -> None:
    """What is put into ``stream``, the current one, is late."""
    if not ON_FAKE:  # there every command is
        torch.cuda._sleep(SLEEP_CYCLES)


def total(n: int) -> float:
    return n * (n + 1) / 2


@CASES.add
def operations_take_the_order_of_the_current_stream() -> None:
    n, me = hvd.size(), hvd.rank()
    stream = new_stream()
    with use(stream):
        delay(stream)
        value = torch.full((1000,), float(me + 1))
        reduced = hvd.allreduce(value, op=hvd.Sum)
        gathered = hvd.allgather(value[:2])
        rows, received = hvd.alltoall(value[: 2 * n], [2] * n)
        doubled = reduced * 2
    stream.synchronize()
    assert_same(doubled, torch.full((1000,), 2 * total(n)))
    assert_same(gathered, torch.arange(1.0, n + 1).repeat_interleave(2))
    assert_same(rows, torch.arange(1.0, n + 1).repeat_interleave(2))
    assert received.device.type == "cpu"  # splits are no tensor
    assert received.tolist() == [2] * n


@CASES.add
def received_splits_are_where_the_splits_are() -> None:
    n = hvd.size()
    value = torch.ones(n)
    for place in ("cpu", torch.get_default_device()):
        splits = torch.ones(n, dtype=torch.int32, device=place)
        rows, received = hvd.alltoall(value, splits)
        assert rows.device == value.device
        assert received.device == splits.device
        assert received.tolist() == [1] * n


@CASES.add
def every_result_is_on_the_device_of_its_tensor() -> None:
    n = hvd.size()
    value = torch.ones(n, 2)
    for made in (
        hvd.allreduce(value),
        hvd.allgather(value),
        hvd.alltoall(value),
        hvd.broadcast(value, 0),
        hvd.reducescatter(value),
        *hvd.grouped_allreduce([value, value]),
        *hvd.grouped_allgather([value, value]),
        *hvd.grouped_reducescatter([value, value]),
    ):
        assert made.device == value.device
        assert made.is_cuda


@CASES.add
def many_rounds_behind_a_stream_that_is_late() -> None:
    n, me = hvd.size(), hvd.rank()
    stream = new_stream()
    with use(stream):
        value = torch.full((4096,), float(me))
        mean = (n - 1) / 2
        for _ in range(ROUNDS):
            delay(stream)
            hvd.allreduce_(value)
            value += me - mean  # ranks differ again; their mean stays
        hvd.allreduce_(value)
    stream.synchronize()
    assert_same(value, torch.full((4096,), mean), rtol=1e-5)


@CASES.add
def results_are_waited_for_in_another_stream() -> None:
    n, me = hvd.size(), hvd.rank()
    first, second = new_stream(), new_stream()
    with use(first):
        delay(first)
        value = torch.full((5000,), float(me + 1))
        handle = hvd.allreduce_async_(value, op=hvd.Sum)
        gather = hvd.allgather_async(value[:0])
    with use(second):
        result = hvd.synchronize(handle) + 1
        nothing = hvd.synchronize(gather)
    second.synchronize()
    assert_same(result, torch.full((5000,), total(n) + 1))
    assert nothing.shape == (0,)


@CASES.add
def poll_says_when_the_device_has_come_so_far() -> None:
    stream = new_stream()
    with use(stream):
        value = torch.ones(100)
        if ON_FAKE:
            stream.hold()
            value += 0
        handle = hvd.allreduce_async_(value, op=hvd.Sum)
        if ON_FAKE:
            assert not hvd.poll(handle)
            stream.release()
        deadline = time.monotonic() + LIMIT_S
        while not hvd.poll(handle):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        hvd.synchronize(handle)
    stream.synchronize()
    assert_same(value, torch.full((100,), float(hvd.size())))


@CASES.add
def gradients_are_reduced_where_they_lie_on_the_stream_of_the_backward_pass() -> None:
    n, me = hvd.size(), hvd.rank()
    stream = new_stream()
    with use(stream):  # another stream would have to be waited for
        weight = torch.nn.Parameter(torch.ones(300))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("streams.weight", weight)])
    seen: list[tuple[int, int]] = []
    device = here()  # there is no default one on the thread of the backward pass

    def note(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        seen.append((current_stream(device), parameter.grad.data_ptr()))

    optimizer.register_gradient_hook(note)
    with use(stream):
        for _ in range(3):
            delay(stream)
            optimizer.zero_grad()
            (weight * (me + 1)).sum().backward()
            optimizer.step()
            if n > 1:
                assert weight.grad is not None
                assert seen[-1] == (current_stream(device), weight.grad.data_ptr())
    stream.synchronize()
    assert_same(weight.detach(), torch.full((300,), 1 - 3 * (n + 1) / 2))


@CASES.add
def a_gradient_keeps_its_memory_without_hooks() -> None:
    weight = torch.nn.Parameter(torch.ones(300))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("streams.plain", weight)])
    weight.grad = torch.zeros(300)
    place = weight.grad.data_ptr()
    (weight * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    assert weight.grad.data_ptr() == place
    assert_same(weight.grad, torch.full((300,), (hvd.size() + 1) / 2))
    with optimizer.skip_synchronize():
        optimizer.step()


@CASES.add
def a_rank_without_state_gets_that_of_the_root_on_its_device() -> None:
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    alone = torch.nn.Parameter(torch.ones(5))
    stepped = torch.optim.Adam([alone], lr=0.1)
    alone.sum().backward()
    stepped.step()
    if hvd.rank() == 0:
        weight.sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    state = optimizer.state[weight]
    assert state["exp_avg"].device == weight.device
    assert state["step"].device == stepped.state[alone]["step"].device
    assert float(state["step"]) == 1.0
    assert_same(state["exp_avg"], torch.full((5,), 0.1), rtol=1e-6)


@CASES.add
def a_stream_that_is_captured_is_refused_and_nothing_stays_behind() -> None:
    value = torch.ones(10)
    stream = new_stream()
    name = "streams.captured"
    if ON_FAKE:
        fake.synchronize(here())
        with use(stream):
            fake.driver.fakeCudaBeginCapture(fake.handle(stream))
            try:
                for call in (hvd.allreduce_, hvd.allreduce_async_):
                    with pytest.raises(hvd.HorovodInternalError, match="captured into a graph"):
                        call(value, name=name)
            finally:
                fake.driver.fakeCudaEndCapture(fake.handle(stream))
    else:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        refused = pytest.raises(hvd.HorovodInternalError, match="captured into a graph")
        with torch.cuda.graph(graph, stream=stream), refused:
            hvd.allreduce_(value, name=name)
    # The name is free, and the world goes on.
    assert_same(hvd.allreduce(value, name=name, op=hvd.Sum), torch.full((10,), float(hvd.size())))
