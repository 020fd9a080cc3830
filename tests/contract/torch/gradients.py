"""Gradients of the collectives."""

from __future__ import annotations

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
