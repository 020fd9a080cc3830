"""Reports about PyTorch's compiler around collectives and optimizers. The compiler takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.contract.reported.optimizers import assert_as_one_process, network, plain_loss, sgd
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()


@CASES.add
def collectives_in_a_compiled_function() -> None:
    """PyTorch: functional collectives in a compiled region were removed, or ran once, while it was traced."""

    def scaled_sum(given: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(given * 2, op=hvd.Sum, name="in_compiled") + 1

    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(scaled_sum, backend="eager")
    for number in range(3):
        expected = 1.0 + 2 * sum(rank + number for rank in range(hvd.size()))
        assert compiled(torch.full((3,), float(hvd.rank() + number))).tolist() == [expected] * 3
    given = torch.ones(3, requires_grad=True)
    compiled(given).sum().backward()
    assert given.grad is not None
    assert given.grad.tolist() == [2.0 * hvd.size()] * 3


def trained(make_step: Callable[[torch.nn.Module, Any], Callable[[int], None]]) -> None:
    net = network()
    step = make_step(net, sgd(net))
    for number in range(3):
        step(number)
    assert_as_one_process(net, plain_loss, 3)


@CASES.add
def a_whole_training_step() -> None:
    """PyTorch DDP: hooks of gradients did not fire in a compiled step, and ranks drifted apart."""

    def whole(net: torch.nn.Module, optimizer: Any) -> Callable[[int], None]:
        @torch.compile(backend="eager")
        def step(number: int) -> None:
            optimizer.zero_grad()
            plain_loss(net, hvd.rank(), number).backward()
            optimizer.step()

        return step

    trained(whole)


@CASES.add
def the_step_of_the_optimizer() -> None:
    """PyTorch: ``optimizer.step`` was compiled to make many small updates fast, without what the wrapper
    did."""

    def of_optimizer(net: torch.nn.Module, optimizer: Any) -> Callable[[int], None]:
        optimizer.step = torch.compile(optimizer.step, backend="eager")

        def step(number: int) -> None:
            optimizer.zero_grad()
            plain_loss(net, hvd.rank(), number).backward()
            optimizer.step()

        return step

    trained(of_optimizer)


@CASES.add
def the_backward_pass_too() -> None:
    """PyTorch with compiled autograd: hooks were moved to the end of the graph, or left out."""

    def with_backward(net: torch.nn.Module, optimizer: Any) -> Callable[[int], None]:
        compiled = torch.compile(
            lambda number: plain_loss(net, hvd.rank(), number).backward(), backend="eager"
        )

        def step(number: int) -> None:
            optimizer.zero_grad()
            with torch._dynamo.config.patch(compiled_autograd=True):
                compiled(number)
            optimizer.step()

        return step

    trained(with_backward)
