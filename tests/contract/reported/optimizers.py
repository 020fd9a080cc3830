"""Reports about training with a wrapped optimizer."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.world import Cases
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd

CASES = Cases()


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def data(rank: int, step: int = 0) -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3) / (rank + step + 1)


def sgd(module: torch.nn.Module, **options: Any) -> Any:
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(plain, module.named_parameters(), **options)


Loss = Callable[[torch.nn.Module, int, int], torch.Tensor]
"""Of a module, a rank and a step."""


def take_two_steps(module: torch.nn.Module, optimizer: Any, loss: Loss) -> None:
    for step in range(2):
        optimizer.zero_grad()
        loss(module, hvd.rank(), step).backward()
        optimizer.step()


def assert_as_one_process(module: torch.nn.Module, loss: Loss, steps: int) -> None:
    """``module`` has the weights of a copy that one process has trained on everybody's data."""
    alone = network()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(steps):
        plain.zero_grad()
        for rank in range(hvd.size()):
            (loss(alone, rank, step) / hvd.size()).backward()
        plain.step()
    for mine, expected in zip(module.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(mine, expected, atol=1e-6)


def plain_loss(module: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = module(data(rank, step)).square().sum()
    return loss


@CASES.add
def a_gradient_penalty_trains_as_in_one_process() -> None:
    """PyTorch DDP: with a gradient of a gradient in the loss, the gradients of ranks stayed their own."""

    def penalty(module: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        given = data(rank, step).requires_grad_()
        (slope,) = torch.autograd.grad(module(given).sum(), given, create_graph=True)
        loss: torch.Tensor = (slope.norm(dim=1) - 1).square().mean() + plain_loss(module, rank, step)
        return loss

    net = network()
    optimizer = sgd(net)
    take_two_steps(net, optimizer, penalty)
    assert_as_one_process(net, penalty, 2)


@CASES.add
def a_layer_in_two_reentrant_checkpoints() -> None:
    """PyTorch DDP: "marked ready twice". Such a layer gets its gradient in two passes; that many are to be
    allowed."""
    layer = torch.nn.Linear(3, 3)
    torch.nn.init.ones_(layer.weight)
    given = torch.full((1, 3), float(hvd.rank() + 1), requires_grad=True)

    def run() -> None:
        checkpoint(layer, checkpoint(layer, given, use_reentrant=True), use_reentrant=True).sum().backward()

    optimizer = sgd(layer)
    with pytest.raises(AssertionError, match="Increase backward_passes_per_step"):
        run()
    optimizer.synchronize()
    optimizer.zero_grad()

    optimizer = sgd(layer, backward_passes_per_step=2)
    with torch.no_grad():
        layer.bias.zero_()
    run()
    optimizer.synchronize()
    mean = (hvd.size() + 1) / 2
    # y = W(Wx): with ones, each element of W gets 3x from the outer layer and 3x from the inner one.
    assert layer.weight.grad is not None
    assert torch.allclose(layer.weight.grad, torch.full((3, 3), 6 * mean))


@CASES.add
def an_averaged_copy_takes_no_part_in_the_exchange() -> None:
    """timm, lucidrains: one rank evaluated its moving average, and its backward pass met nobody."""
    net = network()
    optimizer = sgd(net)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(2):
        if hvd.rank() == 0:
            average(data(0)).sum().backward()
        optimizer.zero_grad()
        plain_loss(net, hvd.rank(), step).backward()
        optimizer.step()
        average.update_parameters(net)
    assert_as_one_process(net, plain_loss, 2)
    for other in hvd.allgather(torch.nn.utils.parameters_to_vector(average.parameters()).unsqueeze(0)):
        assert torch.equal(other, torch.nn.utils.parameters_to_vector(average.parameters()))


@CASES.add
def another_optimizer_for_the_next_phase() -> None:
    """Lightning: the optimizer of the first phase lived on in its scheduler's cycle, and its hooks fired."""
    net = network()
    gc.disable()
    try:
        for phase in range(3):
            optimizer = sgd(net)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            optimizer.zero_grad()
            plain_loss(net, hvd.rank(), phase).backward()
            optimizer.step()
            scheduler.step()
    finally:
        gc.enable()
    assert_as_one_process(net, plain_loss, 3)


@CASES.add
def a_learning_rate_that_is_a_tensor() -> None:
    """PyTorch with capturable optimizers: after a broadcast the scheduler went on changing the old tensor."""
    net = network()
    plain = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1 * (hvd.rank() + 1)))
    optimizer: Any = hvd.DistributedOptimizer(plain, net.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for rate in (0.05, 0.025):
        plain_loss(net, hvd.rank(), 0).backward()
        optimizer.step()
        scheduler.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        got = optimizer.param_groups[0]["lr"]
        assert isinstance(got, torch.Tensor)
        assert abs(float(got) - rate) < 1e-6


@CASES.add
def state_of_any_shape_arrives() -> None:
    """Shampoo, bitsandbytes: state in lists, dictionaries and NumPy scalars was skipped or became tensors."""
    net = torch.nn.Linear(2, 1)
    optimizer: Any = sgd(net)
    for parameter in net.parameters():
        optimizer.state[parameter].update(
            blocks=[torch.full((2,), float(hvd.rank())), {"root": np.float32(hvd.rank())}],
            nothing=None,
            count=hvd.rank(),
        )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for parameter in net.parameters():
        state = optimizer.state[parameter]
        assert state["blocks"][0].tolist() == [0.0, 0.0]
        assert state["nothing"] is None
        assert isinstance(state["blocks"][1]["root"], np.float32)
        assert state["blocks"][1]["root"] == 0
        assert type(state["count"]) is int
        assert state["count"] == 0


@CASES.add
def groups_and_parameters_without_elements() -> None:
    """FSDP, DeepSpeed: an empty group, or a parameter of shape (0, 3), broke the flat buffers."""
    net = torch.nn.Linear(3, 2)
    empty = torch.nn.Parameter(torch.empty(0, 3))
    hvd.broadcast_parameters({**net.state_dict(), "empty": empty}, root_rank=0)
    groups: list[dict[str, Any]] = [{"params": net.parameters()}, {"params": []}, {"params": [empty]}]
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.Adam(groups))
    (net(data(hvd.rank())).sum() + empty.sum()).backward()
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert empty.grad is not None
    assert empty.grad.shape == (0, 3)


@CASES.add
def gradients_of_another_type_than_their_parameter() -> None:
    """PyTorch: float32 gradients of bfloat16 weights; the zeros of a rank that had not used the weight were
    bfloat16."""
    if not hasattr(torch.Tensor, "grad_dtype"):
        return
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    other = torch.nn.Parameter(torch.ones(1))
    plain = torch.optim.SGD([weight, other], lr=0.0)
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    optimizer: Any = hvd.DistributedOptimizer(plain, [("weight", weight), ("other", other)])
    optimizer.zero_grad()
    loss = other.sum()
    if hvd.rank() == 0:
        loss = loss + (weight.float() * 1.5).sum()
    loss.backward()
    optimizer.synchronize()
    assert weight.grad.dtype == torch.float32
    assert torch.allclose(weight.grad, torch.full((3,), 1.5 / hvd.size()))


@CASES.add
def gradients_that_were_computed_without_hooks() -> None:
    """PyTorch: gradients of ``torch.func.grad``, or expanded ones, were assigned by hand and never
    exchanged."""
    net = torch.nn.Linear(3, 1, bias=False)
    optimizer = sgd(net)
    given = torch.full((1, 3), float(hvd.rank()))
    mean = (hvd.size() - 1) / 2

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        total: torch.Tensor = torch.func.functional_call(net, weights, (given,)).sum()
        return total

    for gradient in (
        torch.func.grad(loss)({name: p.detach() for name, p in net.named_parameters()})["weight"],
        torch.full((1, 1), float(hvd.rank())).expand(1, 3),
    ):
        net.weight.grad = gradient
        optimizer.step()
        assert torch.allclose(net.weight.grad, torch.full((1, 3), mean))


@CASES.add
def a_batch_that_all_ranks_give_up() -> None:
    """fairseq: after an exception in the backward pass half of the gradients were in flight, and the next
    batch added to them."""
    net = network()
    optimizer = sgd(net)
    first: Any = net[0].weight

    def fail(_: torch.Tensor) -> None:
        raise MemoryError("no room for this batch")

    hook = first.register_hook(fail)
    with pytest.raises(MemoryError):
        plain_loss(net, hvd.rank(), 5).backward()
    hook.remove()
    optimizer.synchronize()
    take_two_steps(net, optimizer, plain_loss)
    assert_as_one_process(net, plain_loss, 2)


@CASES.add
def strict_modes_of_torch_change_nothing() -> None:
    """Lightning with ``detect_anomaly`` and ``deterministic=True``: collectives used operations that these
    refuse."""
    net = network()
    optimizer = sgd(net)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.set_detect_anomaly(True):
            take_two_steps(net, optimizer, plain_loss)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_as_one_process(net, plain_loss, 2)
