"""Gradients of the collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, float(hvd.rank() + 1), dtype=dtype).requires_grad_()


@CASES.add
def gradient_of_a_sum_is_the_size() -> None:
    for dtype in KINDS:
        x = leaf(3, 2, dtype=dtype)
        y = hvd.allreduce(x, op=hvd.Sum)
        assert y.requires_grad
        y.backward(torch.ones_like(y))
        assert_same(x.grad, torch.full_like(x, hvd.size()))


@CASES.add
def gradient_of_an_average_is_one() -> None:
    x = leaf(3, 2)
    y = hvd.allreduce(x)
    y.backward(torch.ones_like(y))
    assert_same(x.grad, torch.ones(3, 2), 1e-6)


@CASES.add
def factors_apply_to_gradients() -> None:
    x = leaf(4)
    hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0).sum().backward()
    assert_same(x.grad, torch.full((4,), 2.0 * hvd.size()))


@CASES.add
def the_classes_of_autograd_do_what_their_functions_do() -> None:
    """Classes that research code calls and derives from: results and gradients of the functions."""
    ops: Any = hvd.mpi_ops
    everybody, size = hvd.global_process_set, hvd.size()
    rows = torch.tensor([1] * size, dtype=torch.int32)
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (
            lambda x, y: ops.HorovodAllreduce.apply(x, None, None, hvd.Sum, 2.0, 1.0, everybody),
            lambda x, y: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0),
        ),
        (lambda x, y: ops.HorovodAllreduce.apply(x, None, "c.mean"), lambda x, y: hvd.allreduce(x)),
        (
            lambda x, y: ops.HorovodGroupedAllreduce.apply(None, None, hvd.Sum, 1.0, 3.0, everybody, x, y),
            lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum, postscale_factor=3.0),
        ),
        (lambda x, y: ops.HorovodAllgather.apply(x, None, everybody), lambda x, y: hvd.allgather(x)),
        (
            lambda x, y: ops.HorovodGroupedAllgather.apply(None, everybody, x, y),
            lambda x, y: hvd.grouped_allgather([x, y]),
        ),
        (lambda x, y: ops.HorovodBroadcast.apply(x, 0, None, everybody), lambda x, y: hvd.broadcast(x, 0)),
        (
            lambda x, y: ops.HorovodAlltoall.apply(x, rows, None, everybody),
            lambda x, y: hvd.alltoall(x, rows),
        ),
        (
            lambda x, y: ops.HorovodAlltoall.apply(x, None, None, everybody),
            lambda x, y: hvd.alltoall(x, rows[:0]),
        ),
        (
            lambda x, y: ops.HorovodReducescatter.apply(x, None, hvd.Sum, everybody, 1.0, 2.0),
            lambda x, y: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=2.0),
        ),
        (
            lambda x, y: ops.HorovodGroupedReducescatter.apply(None, hvd.Sum, everybody, 1.0, 1.0, x, y),
            lambda x, y: hvd.grouped_reducescatter([x, y], op=hvd.Sum),
        ),
    ]
    for ours, wanted in pairs:
        outcomes = []
        for call in (ours, wanted):
            x, y = leaf(2 * size, 3), leaf(size)
            result = call(x, y)
            results = list(result) if isinstance(result, list | tuple) else [result]
            floats = [each for each in results if each.is_floating_point()]
            torch.stack([(each**2).sum() for each in floats]).sum().backward()
            outcomes.append([*results, x.grad, y.grad])
        for one, other in zip(*outcomes, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)


@CASES.add
def a_class_that_derives_from_one_of_autograd() -> None:
    class Doubled(hvd.mpi_ops.HorovodAllreduce):
        @staticmethod
        def backward(ctx: Any, *upstreams: torch.Tensor) -> Any:
            assert ctx.op == hvd.Sum
            own, *others = hvd.mpi_ops.HorovodAllreduce.backward(ctx, *upstreams)
            return 2 * own, *others

    doubled: Any = Doubled
    x = leaf(3)
    result = doubled.apply(x, None, None, hvd.Sum)
    assert_same(result.detach(), hvd.allreduce(x.detach(), op=hvd.Sum))
    result.sum().backward()
    assert_same(x.grad, torch.full((3,), 2.0 * hvd.size()))


@CASES.add
def a_derived_class_whose_forward_is_its_own_says_what_its_backward_needs() -> None:
    class Own(hvd.mpi_ops.HorovodAllreduce):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return hvd.allreduce(tensor)

    own: Any = Own
    with pytest.raises(ValueError, match=r"Call HorovodAllreduce\.forward\(ctx, "):
        own.apply(leaf(3)).sum().backward()


@CASES.add
def expanded_upstream_gradients_are_fine() -> None:
    x = leaf(5)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert_same(x.grad, torch.full((5,), float(hvd.size())))
    x = leaf(5)
    hvd.grouped_allreduce([x], op=hvd.Sum)[0].sum().backward()
    assert_same(x.grad, torch.full((5,), float(hvd.size())))
    x = leaf(5)
    hvd.allgather(x).sum().backward()
    assert_same(x.grad, torch.ones(5), 1e-6)
    x = leaf(5)
    hvd.broadcast(x, 0).sum().backward()
    assert_same(x.grad, torch.full((5,), float(hvd.rank() == 0)), 1e-6)


@CASES.add
def compression_is_outside_of_the_gradient() -> None:
    x = leaf(5)
    y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert_same(x.grad, torch.full((5,), float(hvd.size())))


@CASES.add
def no_gradient_where_none_is_wanted() -> None:
    x = leaf(2)
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
    assert not hvd.allreduce(x.detach()).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(x)).requires_grad
    assert not hvd.synchronize(hvd.allgather_async(x)).requires_grad
    assert not hvd.synchronize(hvd.broadcast_async(x, 0)).requires_grad


@CASES.add
def second_derivatives() -> None:
    x = leaf(3)
    y = hvd.allreduce(x, op=hvd.Sum)
    (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    first.sum().backward()
    # y = Σx: d(Σ_ranks y²)/dx = 2·size·y, and the derivative of its sum over ranks is 2·size²·size … per
    # rank.
    assert_same(first.detach(), 2.0 * hvd.size() * y.detach())
    assert_same(x.grad, torch.full((3,), 2.0 * hvd.size() ** 2))


@CASES.add
def gradients_of_a_group_member_by_member() -> None:
    xs = [leaf(2, index + 1) for index in range(5)]
    ys = hvd.grouped_allreduce(xs, op=hvd.Sum)
    for index, y in enumerate(ys):
        y.backward(torch.ones_like(y), retain_graph=index < 4)
    for x in xs:
        assert_same(x.grad, torch.full_like(x, hvd.size()))


@CASES.add
def gradients_of_a_group_at_once_with_integers_among_it() -> None:
    xs = [leaf(3), torch.ones(2, dtype=torch.int64), leaf(4)]
    ys = hvd.grouped_allreduce(xs, op=hvd.Sum)
    (ys[0].sum() + 2 * ys[2].sum()).backward()
    assert_same(xs[0].grad, torch.full((3,), float(hvd.size())))
    assert_same(xs[2].grad, torch.full((4,), 2.0 * hvd.size()))
    gathered = hvd.grouped_allgather([leaf(2), torch.ones(1, dtype=torch.int8)])
    gathered[0].sum().backward()


@CASES.add
def gradient_of_an_allgather_is_ones_own_rows() -> None:
    rows = [3, 7, 2, 10]
    for grouped in (False, True):
        x = leaf(rows[hvd.rank()], 2)
        y = hvd.grouped_allgather([x])[0] if grouped else hvd.allgather(x)
        upstream = torch.cat([torch.full((rows[rank], 2), float(rank)) for rank in range(hvd.size())])
        y.backward(upstream)
        assert_same(x.grad, torch.full_like(x, hvd.rank()).detach(), 1e-6)


@CASES.add
def gradient_of_a_broadcast_belongs_to_the_root() -> None:
    for root in range(hvd.size()):
        x = leaf(4)
        y = hvd.broadcast(x, root)
        assert_same(y.detach(), torch.full((4,), float(root + 1)))
        y.backward(torch.ones(4))
        assert_same(x.grad, torch.full((4,), float(hvd.rank() == root)), 1e-6)


@CASES.add
def a_model_across_a_collective() -> None:
    torch.manual_seed(3)
    layer = torch.nn.Linear(4, 4)
    inputs = torch.full((2, 4), float(hvd.rank() + 1))
    hvd.allreduce(layer(inputs), op=hvd.Sum).sum().backward()
    expected = inputs.sum(0).expand(4, 4) * hvd.size()
    assert_same(layer.weight.grad, expected.contiguous(), 1e-6)


@CASES.add
def numerical_derivatives_of_reductions() -> None:
    """All ranks move the same element at once, so a sum moves by their number."""
    torch.manual_seed(11)
    for op in (hvd.Sum, hvd.Average):
        x = torch.randn(3, 2, dtype=torch.float64).requires_grad_()
        z = torch.randn(2, dtype=torch.float64).requires_grad_()

        def one(x: torch.Tensor, op: int = op) -> torch.Tensor:
            return hvd.allreduce(x, op=op, prescale_factor=0.5)

        def group(x: torch.Tensor, z: torch.Tensor, op: int = op) -> list[torch.Tensor]:
            return hvd.grouped_allreduce([x, z], op=op)

        assert torch.autograd.gradcheck(one, (x,))
        assert torch.autograd.gradgradcheck(one, (x,))
        assert torch.autograd.gradcheck(group, (x, z))


@CASES.add
def upstream_gradients_in_another_order() -> None:
    """What comes after a transposition hands over a transposed gradient."""
    n = hvd.size()
    weight = torch.arange(2.0 * n).reshape(2, n)
    calls: list[tuple[Callable[[torch.Tensor], torch.Tensor], int]] = [
        (lambda x: hvd.allreduce(x, op=hvd.Sum), n),
        (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], n),
        (lambda x: hvd.allgather(x), 1),
        (lambda x: hvd.grouped_allgather([x])[0], 1),
        (lambda x: hvd.broadcast(x, 0), int(hvd.rank() == 0)),
    ]
    for call, factor in calls:
        x = torch.ones(n, 2, requires_grad=True)
        y = call(x)
        upstream = weight.repeat(1, y.shape[0] // n)
        (y.t() * upstream).sum().backward()
        assert_same(x.grad, weight.t().contiguous() * factor, 1e-6)


@CASES.add
def second_derivatives_of_gathers_and_broadcasts() -> None:
    x = leaf(2)
    y = hvd.allgather(x)
    (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    assert_same(first.detach(), 2 * x.detach(), 1e-6)
    first.sum().backward()
    # Each rank's rows are averaged with the zeros of the others.
    assert_same(x.grad, torch.full((2,), 2.0 / hvd.size()), 1e-6)
    x = leaf(2)
    z = hvd.broadcast(x, 0)
    (first,) = torch.autograd.grad((z * z).sum(), x, create_graph=True)
    assert_same(first.detach(), torch.full((2,), 2.0 * (hvd.rank() == 0)), 1e-6)


@CASES.add
def members_of_a_group_that_have_no_gradient_are_marked() -> None:
    whole = torch.ones(2, dtype=torch.int64)
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather):
        results = call([leaf(2), whole, torch.ones(3)])
        assert [result.requires_grad for result in results] == [True, False, True]
