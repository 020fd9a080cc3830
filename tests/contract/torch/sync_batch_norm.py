"""SyncBatchNorm against a batch normalisation of one process over the batches of all ranks together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()

LAYERS: dict[int, type[torch.nn.Module]] = {
    2: torch.nn.BatchNorm1d,
    3: torch.nn.BatchNorm1d,
    4: torch.nn.BatchNorm2d,
    5: torch.nn.BatchNorm3d,
}


def parts(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Every rank's batch, the same on all ranks."""
    torch.manual_seed(seed)
    return [
        (torch.randn(shape, dtype=torch.float64) * (1 + i) + i).to(dtype) for i, shape in enumerate(shapes)
    ]


def uneven(rest: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(rank % 3 + 2, *rest) for rank in range(hvd.size())]


def check(
    batches: list[torch.Tensor], rtol: float = 1e-6, atol: float = 1e-7, rounds: int = 2, **options: Any
) -> None:
    """Forward and backward, running statistics and state of one layer."""
    me = hvd.rank()
    features, dtype = batches[0].size(1), batches[0].dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    layer: Any = hvd.SyncBatchNorm(features, **options).to(wide)
    alone: Any = LAYERS[batches[0].dim()](features, **options).to(wide)
    if layer.weight is not None:
        with torch.no_grad():
            for parameter, value in ((layer.weight, 1.5), (layer.bias, -0.5)):
                parameter.copy_(torch.linspace(value, 2 * value, features))
        alone.load_state_dict(layer.state_dict())
    begin = sum(len(batch) for batch in batches[:me])
    for number in range(rounds):
        mine = batches[me].clone().requires_grad_()
        everything = torch.cat(batches).to(wide).requires_grad_()
        got, expected = layer(mine), alone(everything)
        torch.manual_seed(number)
        upstream = torch.randn(expected.shape, dtype=wide).to(dtype)
        own = slice(begin, begin + len(mine))
        got.backward(upstream[own])
        expected.backward(upstream.to(wide))

        def near(value: torch.Tensor, reference: torch.Tensor) -> None:
            torch.testing.assert_close(value.to(reference.dtype), reference, rtol=rtol, atol=atol)

        assert got.dtype == dtype
        assert mine.grad is not None
        assert everything.grad is not None
        near(got, expected[own])
        near(mine.grad, everything.grad[own])
        if layer.weight is not None:
            for parameter, reference in ((layer.weight, alone.weight), (layer.bias, alone.bias)):
                near(hvd.allreduce(parameter.grad, op=hvd.Sum), reference.grad)
        layer.zero_grad()
        alone.zero_grad()
    for key, value in alone.state_dict().items():
        near(layer.state_dict()[key], value)
    assert list(layer.state_dict()) == list(alone.state_dict())


@CASES.add
def like_one_process_on_the_whole_batch() -> None:
    for rest in ((4,), (4, 2), (3, 2, 5), (2, 3, 1, 2)):
        check(parts(uneven(rest), torch.float32), atol=1e-6)
        check(parts(uneven(rest), torch.float64), rtol=1e-12, atol=1e-12)


@CASES.add
def half_types() -> None:
    check(parts(uneven((4, 6)), torch.float16), rtol=2e-3, atol=2e-3)
    check(parts(uneven((4, 6)), torch.bfloat16), rtol=2e-2, atol=2e-2)
    # Also with weights and statistics of the same type.
    layer: Any = hvd.SyncBatchNorm(4).to(torch.bfloat16)
    batch = parts(uneven((4, 6)), torch.bfloat16)[hvd.rank()].requires_grad_()
    layer(batch).sum().backward()
    assert batch.grad is not None
    assert {batch.grad.dtype, layer.weight.grad.dtype, layer.running_var.dtype} == {torch.bfloat16}


@CASES.add
def one_value_per_channel_on_each_rank() -> None:
    if hvd.size() == 1:
        return
    for shape in ((1, 4), (1, 4, 1)):
        check(parts([shape] * hvd.size(), torch.float32), atol=1e-6)


@CASES.add
def mean_of_a_slice_as_users_test_it() -> None:
    for last in (2, 1):
        if hvd.size() == 1 and last == 1:
            continue
        torch.manual_seed(1)
        everything = torch.randn(hvd.size(), 4, last)
        mine = everything[hvd.rank() : hvd.rank() + 1].clone().requires_grad_()
        everything.requires_grad_()
        layer: Any = hvd.SyncBatchNorm(4)
        alone: Any = torch.nn.BatchNorm1d(4)
        got, expected = layer(mine), alone(everything)
        got.mean(dim=0).sum().backward()
        expected.mean(dim=0).sum().backward()
        assert mine.grad is not None
        assert everything.grad is not None
        assert torch.allclose(got, expected[hvd.rank() : hvd.rank() + 1], 1e-6, 1e-6)
        assert torch.allclose(layer.running_mean, alone.running_mean, 1e-6)
        assert torch.allclose(layer.running_var, alone.running_var, 1e-6)
        assert torch.allclose(hvd.allreduce(layer.weight.grad), alone.weight.grad, 1e-6, 1e-6)
        assert torch.allclose(hvd.allreduce(layer.bias.grad), alone.bias.grad, 1e-6)
        assert torch.allclose(hvd.allreduce(mine.grad), everything.grad.mean(0), 1e-6, 1e-6)


@CASES.add
def a_rank_without_samples() -> None:
    if hvd.size() == 1:
        return
    for empty in range(hvd.size()):
        shapes = [(0 if rank == empty else rank + 2, 4, 3) for rank in range(hvd.size())]
        check(parts(shapes, torch.float32), atol=1e-6)


@CASES.add
def nobody_has_samples() -> None:
    if hvd.size() == 1:
        return
    layer: Any = hvd.SyncBatchNorm(4)
    batch = torch.zeros(0, 4, 3, requires_grad=True)
    layer(batch).sum().backward()
    assert batch.grad is not None
    assert_same(batch.grad, torch.zeros(0, 4, 3))
    assert_same(layer.running_mean, torch.zeros(4))
    assert_same(layer.running_var, torch.ones(4))


@CASES.add
def a_single_value_in_the_whole_batch() -> None:
    layer: Any = hvd.SyncBatchNorm(4)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(torch.ones(1 if hvd.rank() == hvd.size() - 1 else 0, 4))
    assert int(layer.num_batches_tracked) == (1 if hvd.size() == 1 else 0)


@CASES.add
def options() -> None:
    batches = parts(uneven((4, 2)), torch.float32)
    check(batches, atol=1e-6, affine=False)
    check(batches, atol=1e-6, track_running_stats=False)
    check(batches, atol=1e-6, rounds=3, momentum=None)
    check(batches, atol=1e-6, momentum=0.5, eps=1e-2)


@CASES.add
def large_means_do_not_swamp_the_variance() -> None:
    """Sums of squares would lose it: 1 against 1e12 in float32 and 1e18 in float64."""
    if hvd.size() == 1:
        return
    for dtype, far, rtol in ((torch.float32, 1e6, 1e-6), (torch.float64, 1e9, 1e-6)):
        batches = [batch + far for batch in parts(uneven((4, 50)), dtype)]
        layer: Any = hvd.SyncBatchNorm(4, momentum=1.0).to(dtype)
        layer(batches[hvd.rank()])
        whole = torch.cat(batches).double()
        expected = (whole - far).var(dim=(0, 2))
        assert torch.allclose(layer.running_var.double(), expected, rtol)
        assert torch.allclose(layer.running_mean.double(), whole.mean(dim=(0, 2)), 1e-6)


@CASES.add
def evaluation_uses_running_statistics_and_exchanges_nothing() -> None:
    layer: Any = hvd.SyncBatchNorm(4)
    layer(parts(uneven((4, 2)), torch.float32)[hvd.rank()])
    layer.eval()
    alone = torch.nn.BatchNorm1d(4).eval()
    alone.load_state_dict(layer.state_dict())
    if hvd.rank() == 0:  # the others do not take part
        batch = torch.randn(3, 4, 2)
        assert torch.equal(layer(batch), alone(batch))
    without = hvd.SyncBatchNorm(4, track_running_stats=False).eval()
    everybody = parts(uneven((4, 2)), torch.float32)
    whole = torch.nn.BatchNorm1d(4, track_running_stats=False)(torch.cat(everybody))
    begin = sum(len(batch) for batch in everybody[: hvd.rank()])
    mine = everybody[hvd.rank()]
    torch.testing.assert_close(without(mine), whole[begin : begin + len(mine)], rtol=1e-5, atol=1e-6)


@CASES.add
def all_ranks_get_the_same_bits() -> None:
    layer: Any = hvd.SyncBatchNorm(5)
    layer(parts(uneven((5, 7)), torch.float32)[hvd.rank()])
    for key, value in layer.state_dict().items():
        for other in hvd.allgather(value.reshape(1, -1), name=f"bn.{key}"):
            assert torch.equal(other, value.reshape(-1))


class Network(torch.nn.Module):
    """Two layers of normalisation of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(2, 6, 3),
            torch.nn.BatchNorm2d(6),
            torch.nn.ReLU(),
            torch.nn.Conv2d(6, 3, 1),
            torch.nn.BatchNorm2d(3, momentum=0.3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x).square().mean(dim=(1, 2, 3))
        return out


@CASES.add
def a_converted_network_trains_like_one_process() -> None:
    torch.manual_seed(3)
    alone = Network()
    network: Any = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))
    assert [type(m).__name__ for m in network.modules()].count("SyncBatchNorm") == 2
    assert network.body[4].momentum == 0.3
    assert list(network.state_dict()) == list(alone.state_dict())
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        batches = parts([(3, 2, 5, 5)] * hvd.size(), torch.float32, step)
        optimizer.zero_grad()
        network(batches[hvd.rank()]).mean().backward()
        optimizer.step()
        reference.zero_grad()
        alone(torch.cat(batches)).mean().backward()
        reference.step()
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(network.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@CASES.add
def second_derivatives() -> None:
    """A penalty on the gradient of the input, against one process on the whole batch."""
    batches = parts(uneven((3, 2)), torch.float64)
    layer: Any = hvd.SyncBatchNorm(3).double()
    alone: Any = torch.nn.BatchNorm1d(3).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        alone.load_state_dict(layer.state_dict())
    mine = batches[hvd.rank()].clone().requires_grad_()
    everything = torch.cat(batches).requires_grad_()
    for net, x in ((layer, mine), (alone, everything)):
        (slope,) = torch.autograd.grad(net(x).pow(3).sum(), x, create_graph=True)
        slope.square().sum().backward()
    begin = sum(len(batch) for batch in batches[: hvd.rank()])
    assert mine.grad is not None
    assert everything.grad is not None
    torch.testing.assert_close(mine.grad, everything.grad[begin : begin + len(mine)])
    torch.testing.assert_close(hvd.allreduce(layer.weight.grad, op=hvd.Sum), alone.weight.grad)


@CASES.add
def wrong_inputs_are_refused_before_anything_is_sent() -> None:
    layer: Any = hvd.SyncBatchNorm(4)
    for training in (True, False):
        layer.train(training)
        with pytest.raises(ValueError, match="at least 2D"):
            layer(torch.ones(4))
    layer.train()
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="4 features"):
            layer(torch.ones(2, 3))
        with pytest.raises(ValueError, match="int64"):
            layer(torch.ones(2, 4, dtype=torch.int64))


@CASES.add
def copies_and_states_are_those_of_torch() -> None:
    layer: Any = copy.deepcopy(hvd.SyncBatchNorm(4))
    layer(parts(uneven((4, 2)), torch.float32)[hvd.rank()])
    assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    alone = torch.nn.BatchNorm1d(4)
    alone.load_state_dict(layer.state_dict())
    layer.load_state_dict(alone.state_dict())
    with torch.no_grad():
        assert layer(torch.randn(2, 4)).requires_grad is False


@CASES.add
def compiled_networks_normalise_over_all_ranks() -> None:
    """The exchange cuts the graph of ``torch.compile`` into parts; the values are those of eager mode."""
    if hvd.size() != 2:  # compiling takes seconds on each rank, and more ranks would show nothing new
        return
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), hvd.SyncBatchNorm(4), torch.nn.ReLU())
    eager = copy.deepcopy(network)
    compiled = torch.compile(network, backend="eager")
    for _ in range(2):
        batch = torch.randn(5, 3) + hvd.rank()
        got, expected = compiled(batch), eager(batch)
        torch.testing.assert_close(got, expected)
        for out in (got, expected):
            out.square().sum().backward()
    for one, other in zip(network.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(network.state_dict()[key], value)


@CASES.add
def sets_normalise_their_own_batches() -> None:
    """Also copies of their layers; a rank outside of the set has the plain layer."""
    if hvd.size() < 2:
        return
    members = hvd.add_process_set(range(1, hvd.size()))
    batches = parts([(3, 2)] * hvd.size(), torch.float64)
    layer: Any = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).double()
    alone = copy.deepcopy(layer)
    layer = copy.deepcopy(hvd.SyncBatchNorm.convert_sync_batchnorm(layer, process_set=members))
    mine = batches[hvd.rank()].clone().requires_grad_()
    together = batches[1:] if members.included() else batches[:1]
    everything = torch.cat(together).requires_grad_()
    at = 3 * (hvd.rank() - 1 if members.included() else 0)
    got, expected = layer(mine), alone(everything)
    (got * mine).sum().backward()
    (expected * everything).sum().backward()
    assert_same(got, expected[at : at + 3], rtol=1e-9)
    assert everything.grad is not None
    assert_same(mine.grad, everything.grad[at : at + 3], rtol=1e-9)
    assert_same(layer[0].running_var, alone[0].running_var, rtol=1e-9)
    assert hvd.remove_process_set(members)
