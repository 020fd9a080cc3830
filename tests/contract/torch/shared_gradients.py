"""Gradients in memory that the ranks of a host share: the same bits as in private memory, whatever scripts do
with them, and private again when the world ends."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from tests.contract.torch.state import assert_equal_everywhere
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod import observe
from horovod.runtime import lifecycle
from horovod.torch.shared_gradients import SharedGradients

CASES = Cases()
STEPS = 6
CHOICES = ("auto", "1")


@contextmanager
def choosing(choice: str) -> Iterator[None]:
    """Optimizers made inside are set so."""
    with mock.patch("horovod.torch.optimizer.SharedGradients", functools.partial(_chosen, choice)):
        yield


def _chosen(choice: str, _: str) -> SharedGradients:
    return SharedGradients(choice)


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    """The same weights on every rank; together too large for the path of small operations."""
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(40, 300), torch.nn.Tanh(), torch.nn.Linear(300, 200), torch.nn.Linear(200, 3)
    ).to(dtype)


def wrapped(net: torch.nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        named_parameters=net.named_parameters(),
        **options,
    )


def loss_of(net: torch.nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    inputs = torch.randn(4, 40, generator=generator).to(next(net.parameters()).dtype)
    loss: torch.Tensor = net(inputs).float().square().mean()
    return loss


def mapped(tensor: torch.Tensor) -> bool:
    """Whether it lies in the heap of a segment."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            if "memfd:farandole" in line:
                begin, end = (int(number, 16) for number in line.split()[0].split("-"))
                if begin <= tensor.data_ptr() < end:
                    return True
    return False


def can_share() -> bool:
    return hvd.size() > 1 and lifecycle.current().share_memory(None)


def in_heap() -> int:
    """How many batches were reduced where they lay."""
    return observe.data_paths().get("shm.heap", (0, 0))[0]


def train(choice: str, set_to_none: bool, passes: int, dtype: torch.dtype, **options: Any) -> Any:
    net = network(dtype)
    with choosing(choice):
        optimizer = wrapped(net, backward_passes_per_step=passes, **options)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        for part in range(passes):
            loss_of(net, passes * step + part).backward()
        optimizer.step()
    return net, optimizer


def same_bits(set_to_none: bool, passes: int, dtype: torch.dtype) -> None:
    expected, _ = train("0", set_to_none, passes, dtype)
    for choice in CHOICES:
        before = in_heap()
        net, _ = train(choice, set_to_none, passes, dtype)
        for mine, other in zip(net.parameters(), expected.parameters(), strict=True):
            assert torch.equal(mine, other), (choice, mine, other)
            assert_equal_everywhere(mine)
        moved = can_share() and not (choice == "auto" and set_to_none)
        assert [mapped(p.grad) for p in net.parameters()] == [moved] * 6, choice
        assert (in_heap() > before) == moved


for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for passes in (1, 2):
        for set_to_none in (False, True):
            CASES.add_as(
                f"same_bits-{str(dtype)[6:]}-{passes}-{'none' if set_to_none else 'zeros'}",
                functools.partial(same_bits, set_to_none, passes, dtype),
            )


@CASES.add
def groups_and_all_together_are_reduced_where_they_lie() -> None:
    expected, _ = train("0", False, 1, torch.float32)
    for options in ({"groups": 2}, {"groups": 1}):
        net, _ = train("1", False, 1, torch.float32, **options)
        for mine, other in zip(net.parameters(), expected.parameters(), strict=True):
            assert torch.equal(mine, other)


@CASES.add
def what_is_scaled_before_stays_private() -> None:
    net, _ = train("1", False, 1, torch.float32, gradient_predivide_factor=2.0)
    assert not any(mapped(p.grad) for p in net.parameters())


@CASES.add
def replaced_gradients_are_exchanged_as_they_are() -> None:
    """By a copy, by a view of a larger tensor, by nothing: the optimizer sees the average."""
    for choice in CHOICES:
        net = network()
        with choosing(choice):
            optimizer = wrapped(net)
        parameters = list(net.parameters())
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            if step == 2:
                for p in parameters:
                    assert p.grad is not None
                    p.grad = p.grad.clone()
            if step == 3:
                for p in parameters:
                    p.grad = torch.zeros(2, *p.shape)[1]
            if step == 4:
                parameters[0].grad = None
            local = torch.autograd.grad(loss_of(net, step), parameters)
            loss_of(net, step).backward()
            optimizer.synchronize()
            for index, (p, gradient) in enumerate(zip(parameters, local, strict=True)):
                assert p.grad is not None
                assert torch.allclose(p.grad, hvd.allreduce(gradient, name=f"r.{index}"), atol=1e-7)
            with optimizer.skip_synchronize():
                optimizer.step()
        for p in parameters:
            assert_equal_everywhere(p)


@CASES.add
def views_of_a_flat_buffer_stay_in_it() -> None:
    """Scripts that keep all gradients in one tensor find them there."""
    net = network()
    with choosing("auto"):
        optimizer = wrapped(net)
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    for step in range(STEPS):
        flat.zero_()
        loss_of(net, step).backward()
        optimizer.step()
        assert torch.equal(flat, torch.cat([p.grad.flatten() for p in net.parameters()]))  # type: ignore[union-attr]
        assert_equal_everywhere(flat)


@CASES.add
def sparse_gradients_stay_sparse() -> None:
    for choice in CHOICES:
        torch.manual_seed(3)
        table = torch.nn.Embedding(50, 8, sparse=True)
        with choosing(choice):
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1))
        for step in range(3):
            optimizer.zero_grad(set_to_none=False)
            table(torch.tensor([step, hvd.rank()])).sum().backward()
            optimizer.step()
            assert table.weight.grad is not None
            assert table.weight.grad.is_sparse
        assert_equal_everywhere(table.weight)


@CASES.add
def a_forked_child_sees_nothing_of_what_its_parent_writes() -> None:
    """And has no memory of this rank or another that it could write."""
    net, _ = train("1", False, 1, torch.float32)
    gradients = [p.grad for p in net.parameters()]
    moved = [mapped(g) for g in gradients]
    before = [g.clone() for g in gradients]
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reads, 1)  # the parent has written
        with open("/proc/self/maps", encoding="ascii") as maps:
            wrong = "memfd:farandole" in maps.read()
        for g, b, there in zip(gradients, before, moved, strict=True):
            wrong |= g.shape != b.shape
            if not there:
                wrong |= not torch.equal(g, b)
                continue
            wrong |= not bool(g.isnan().all())
            g.fill_(-1.0)  # reaches nobody
        os._exit(1 if wrong else 0)
    for g in gradients:
        g.mul_(2.0)
    os.write(writes, b"!")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reads)
    os.close(writes)
    assert all(torch.equal(g, 2 * b) for g, b in zip(gradients, before, strict=True))


@CASES.add
def gradients_outlive_the_world_and_come_back_in_the_next() -> None:
    for choice in CHOICES:
        net, optimizer = train(choice, False, 1, torch.float32)
        parameters = list(net.parameters())
        before = [p.grad.clone() for p in parameters]
        hvd.shutdown()
        for p, gradient in zip(parameters, before, strict=True):
            assert torch.equal(p.grad, gradient)
            assert not mapped(p.grad)
        hvd.init()
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            loss_of(net, step).backward()
            optimizer.step()
        assert [mapped(p.grad) for p in parameters] == [can_share()] * 6
        for p in parameters:
            assert_equal_everywhere(p)
