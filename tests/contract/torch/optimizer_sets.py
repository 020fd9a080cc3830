"""`DistributedOptimizer` on some of the ranks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tests.contract.torch.optimizer_families import SHARE, batch, loss_of, network, share
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def members_case(options: dict[str, Any]) -> None:
    """Members train together on their shares; each of the others trains alone."""
    if hvd.size() < 2:
        return
    members = hvd.add_process_set(range(1, hvd.size()))
    net, alone = network(), network()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.Adam(net.parameters(), lr=0.05),
        named_parameters=net.named_parameters(),
        process_set=members,
        **options,
    )
    reference = torch.optim.Adam(alone.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, share(step)).backward()
        optimizer.step()
        reference.zero_grad()
        inputs = batch(step)[SHARE:] if members.included() else share(step)
        loss_of(alone, inputs).backward()
        reference.step()
    everybody = hvd.allgather(weights(net).unsqueeze(0), name="weights")
    assert torch.allclose(everybody[hvd.rank()], weights(alone), rtol=1e-7, atol=1e-9)
    assert all(torch.equal(other, everybody[1]) for other in everybody[1:])
    assert not torch.equal(everybody[0], everybody[1])
    assert hvd.remove_process_set(members)


CASES.add_as("members_train_together", functools.partial(members_case, {}))
CASES.add_as("members_agree_on_groups", functools.partial(members_case, {"groups": 2}))


@CASES.add
def sparse_gradients_of_members() -> None:
    if hvd.size() < 2:
        return
    members = hvd.add_process_set(range(1, hvd.size()))
    torch.manual_seed(3)
    net = torch.nn.Embedding(12, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(net.parameters()), lr=0.1), process_set=members
    )
    for step in range(2):
        optimizer.zero_grad()
        net(torch.tensor([hvd.rank(), step])).sum().backward()
        optimizer.step()
    everybody = hvd.allgather(weights(net).unsqueeze(0), name="weights")
    assert all(torch.equal(other, everybody[1]) for other in everybody[1:])
    assert not torch.equal(everybody[0], everybody[1])
    assert hvd.remove_process_set(members)


@CASES.add
def two_sets_train_at_the_same_time() -> None:
    """The same names in sets that have no rank in common."""
    if hvd.size() < 2:
        return
    sets = [hvd.add_process_set(range(start, hvd.size(), 2)) for start in range(2)]
    mine = sets[hvd.rank() % 2]
    net = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters(), process_set=mine
    )
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, share(step)).backward()
        optimizer.step()
    everybody = hvd.allgather(weights(net).unsqueeze(0), name="weights")
    for rank in range(hvd.size()):
        assert torch.equal(everybody[rank], everybody[rank % 2])
    assert not torch.equal(everybody[0], everybody[1])
    for one in sets:
        assert hvd.remove_process_set(one)


def stepped(value: torch.Tensor, optimizer: Any) -> float:
    """What one step makes of a weight whose gradient is ``10 ** rank``."""
    with torch.no_grad():
        value.zero_()
    optimizer.zero_grad()
    (value * 10.0 ** hvd.rank()).sum().backward()
    optimizer.step()
    return -float(value.item())


@CASES.add
def an_optimizer_follows_the_number_of_its_set() -> None:
    if hvd.size() < 2:
        return
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(range(1, hvd.size()))]
    for one in sets:
        hvd.add_process_set(one)
    mine = sets[hvd.rank() > 0]
    value = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([value], lr=1.0), named_parameters=[("value", value)], process_set=mine
    )
    expected = sum(10.0**rank for rank in mine.ranks or ()) / (mine.size() or 0)
    assert abs(stepped(value, optimizer) / expected - 1) < 1e-6
    for one in sets:
        assert hvd.remove_process_set(one)
    for one in reversed(sets):
        hvd.add_process_set(one)
    assert abs(stepped(value, optimizer) / expected - 1) < 1e-6
    for one in sets:
        assert hvd.remove_process_set(one)
    # Another set has that number now.
    others = [hvd.add_process_set([rank]) for rank in (1, 0)]
    with pytest.raises(TypeError, match="not registered"):
        stepped(value, optimizer)
    for one in others:
        assert hvd.remove_process_set(one)
