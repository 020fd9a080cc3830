"""What scripts do with tensors of a device beside training, and what they should not. Only where
``FARANDOLE_TEST_DEVICE`` names one."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from tests.contract.torch.errors import works
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
LIMIT_S = 20.0


@CASES.add
def ranks_join_on_their_device() -> None:
    n, me = hvd.size(), hvd.rank()
    device = torch.get_default_device().index
    assert device is not None
    for first in range(n):
        if me != first:
            for step in range(3):  # also those that all know already
                total = hvd.allreduce(torch.full((5,), me + 1.0), name=f"uses.join.{step}", op=hvd.Sum)
                assert_same(total, torch.full((5,), n * (n + 1) / 2 - first - 1))
        last = hvd.join(device)
        assert n == 1 or last != first


@CASES.add
def gradients_are_scaled() -> None:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.125)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    before = model.weight.detach().clone()
    for step in range(3):
        optimizer.zero_grad()
        loss: Any = model(torch.ones(1, 4)).sum() * (hvd.rank() + 1)
        if step == 1 and hvd.rank() == 0:
            loss = loss * float("inf")  # on one rank: all leave the step out
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    mean = (hvd.size() + 1) / 2
    assert_same(model.weight.detach(), before - 2 * 0.125 * mean, rtol=1e-5)
    assert scaler.get_scale() == 4.0


@CASES.add
def sets_come_and_go_and_their_numbers_with_them() -> None:
    if hvd.size() == 1:  # only the global set can be
        return
    members = [0] if hvd.size() < 3 else [0, 1]
    for step in range(8):
        some = hvd.add_process_set(members)
        if some.included():
            handles = [
                hvd.allreduce_async_(
                    torch.full((1000 * (i + 1),), float(step)), name=f"uses.set.{i}", process_set=some
                )
                for i in range(6)
            ]
            for handle in handles:
                assert float(hvd.synchronize(handle)[-1]) == step
        assert hvd.remove_process_set(some)
    works()


@CASES.add
def all_rows_go_to_one_rank() -> None:
    n, me = hvd.size(), hvd.rank()
    for to in range(n):
        splits = [50_000 + me if rank == to else 0 for rank in range(n)]
        rows, received = hvd.alltoall(torch.full((50_000 + me, 3), float(me)), splits)
        if me != to:
            assert rows.shape == (0, 3)
            continue
        assert received.tolist() == [50_000 + rank for rank in range(n)]
        assert_same(rows, torch.cat([torch.full((50_000 + rank, 3), float(rank)) for rank in range(n)]))


@CASES.add
def a_handle_is_waited_for_on_another_thread_once() -> None:
    n = hvd.size()
    handle = hvd.allgather_async(torch.ones(4), name="uses.thread")
    got: list[Any] = []

    def wait() -> None:
        made = hvd.synchronize(handle)
        got.append((made.shape, float(made.sum())))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(LIMIT_S)
    assert got == [((4 * n,), 4.0 * n)]
    assert hvd.synchronize(handle) is None


@CASES.add
def a_group_on_two_devices_is_staged() -> None:
    if torch.cuda.device_count() < 2 or os.environ.get("HOROVOD_GPU_OPERATIONS") != "STAGED":
        return
    n = hvd.size()
    given = [torch.full((3,), index + 1.0, device=f"cuda:{index}") for index in range(2)]
    for index, total in enumerate(hvd.grouped_allreduce(given, op=hvd.Sum)):
        assert total.device.index == index
        assert total.tolist() == [n * (index + 1.0)] * 3


@CASES.add
def a_result_that_is_waited_for_after_the_end_is_an_error() -> None:
    handle = hvd.allgather_async(torch.ones(4), name="uses.late")
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(hvd.HorovodInternalError, match="shut down"):
        hvd.synchronize(handle)
    hvd.init()
    works()
