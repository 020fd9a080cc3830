"""`DistributedOptimizer`: how gradients travel: in groups, narrow, as rows, in another order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, grads, two_layers, wrap

import horovod.torch as hvd
from horovod import _core

pytestmark = pytest.mark.timeout(30)


def grouped_as(engine: Any) -> list[list[int]]:
    return [sorted(submission.data) for submission in engine.log]


def addresses(parameters: Iterable[torch.Tensor]) -> list[int]:
    return sorted(p.grad.data_ptr() for p in parameters if p.grad is not None)


def test_a_number_of_groups_cuts_consecutive_chunks(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, groups=3)
    engine.log.clear()
    backward(model)
    parameters = list(model.parameters())
    assert sorted(grouped_as(engine)) == sorted(
        [addresses(parameters[:2]), addresses(parameters[2:3]), addresses(parameters[3:])]
    )
    optimizer.step()
    assert {submission.name for submission in engine.log} == {"0.weight", "1.weight", "1.bias"}


def test_listed_groups_travel_together_and_the_others_alone(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum, groups=[[model[1].bias, model[0].weight]])
    backward(model)
    local = grads(model)
    optimizer.synchronize()
    assert {submission.name for submission in engine.log} == {"1.bias", "0.bias", "1.weight"}
    assert [s.grouped for s in engine.log if s.name == "1.bias"] == [True]
    assert all(torch.equal(a, 2 * b) for a, b in zip(grads(model), local, strict=True))


def test_a_group_with_an_unused_member_still_travels_together(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, groups=[list(model.parameters())])
    model[0](torch.ones(1, 3)).sum().backward()
    assert engine.log == []
    optimizer.step()
    assert [len(submission.data) for submission in engine.log] == [4]


def test_predivision_splits_the_average(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, gradient_predivide_factor=4.0)
    backward(model)
    assert {(s.op, s.prescale, s.postscale) for s in engine.log} == {(hvd.Average, 0.25, 4.0)}
    optimizer.step()


@pytest.mark.parametrize("groups", [None, 2])
def test_compression_travels_narrow_and_comes_back(groups: int | None, make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, compression=hvd.Compression.fp16, op=hvd.Sum, groups=groups)
    engine.log.clear()
    backward(model)
    local = grads(model)
    optimizer.synchronize()
    assert {dtype for submission in engine.log for dtype in submission.dtypes} == {_core.FLOAT16}
    for before, after in zip(local, grads(model), strict=True):
        assert after.dtype == torch.float32
        assert torch.allclose(after, 2 * before, rtol=1e-3)


def test_gradients_in_another_memory_order_are_exchanged_by_value(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = wrap(model, op=hvd.Sum)
    model(torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    assert not gradient.is_contiguous()
    local = gradient.clone()
    optimizer.synchronize()
    assert model.weight.grad is gradient
    assert torch.equal(gradient, 2 * local)
    assert [s.shapes for s in engine.log if s.name == "weight"] == [[(4, 3, 2, 2)]]


def embedding() -> torch.nn.Embedding:
    torch.manual_seed(2)
    return torch.nn.Embedding(6, 3, sparse=True)


def test_sparse_gradients_travel_as_rows(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = embedding()
    optimizer = wrap(model)
    model(torch.tensor([1, 4, 1])).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    local = gradient.to_dense()
    optimizer.synchronize()
    assert sorted(str(name) for name in engine.names) == ["weight.indices", "weight.values"]
    reduced = model.weight.grad
    assert reduced is not None
    assert reduced.is_sparse
    assert torch.allclose(reduced.to_dense(), local)
    with optimizer.skip_synchronize():
        optimizer.step()


def test_a_sparse_parameter_without_gradient_sends_no_rows(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = embedding()
    optimizer = wrap(model)
    model(torch.tensor([1])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    engine.log.clear()
    optimizer.step()
    assert sorted(str(name) for name in engine.names) == ["weight.indices", "weight.values"]


def test_a_table_that_was_never_used_sends_no_rows(make_world: MakeWorld) -> None:
    """Another rank may send some."""
    engine = make_world(2)
    first, later = embedding(), embedding()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(first.parameters(), lr=0.1))
    optimizer.add_param_group({"params": later.parameters()})
    optimizer.step()
    assert [str(name).rsplit(".", 1)[-1] for name in engine.names] == 2 * ["indices", "values"]


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_a_table_that_no_rank_has_used_has_no_gradient(sparse_as_dense: bool, make_world: MakeWorld) -> None:
    """As in one process. Adam takes no sparse gradient."""
    make_world(2)
    model = embedding()
    before = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), weight_decay=0.1),
        model.named_parameters(),
        sparse_as_dense=sparse_as_dense,
    )
    optimizer.step()
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("grouped", [False, True])
def test_sparse_as_dense_is_sparse_again_for_the_update(grouped: bool, make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = embedding()
    inner = torch.optim.SparseAdam(list(model.parameters()))
    optimizer = hvd.DistributedOptimizer(
        inner, op=hvd.Sum, sparse_as_dense=True, groups=1 if grouped else None
    )
    engine.log.clear()
    model(torch.tensor([1, 4, 1])).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    local = gradient.to_dense()
    optimizer.synchronize()
    assert [s.kind for s in engine.log] == [_core.ALLREDUCE]
    reduced = model.weight.grad
    assert reduced is not None
    assert reduced.is_sparse
    assert torch.equal(reduced.to_dense(), 2 * local)
    with optimizer.skip_synchronize():
        optimizer.step()


def test_parameters_frozen_later_stay_in_the_exchange(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    for _ in range(3):
        for frozen in (0, 1):
            engine.log.clear()
            optimizer.zero_grad()
            model.requires_grad_(True)
            model[frozen].requires_grad_(False)
            backward(model)
            optimizer.step()
            assert sorted(str(name) for name in engine.names) == sorted(NAMES)


def test_frozen_parameters_are_left_out(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = wrap(model)
    backward(model)
    optimizer.step()
    assert sorted(str(name) for name in engine.names) == ["1.bias", "1.weight"]
    assert model[0].weight.grad is None


def test_half_precision_parameters(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers().to(torch.bfloat16)
    optimizer = wrap(model, compression=hvd.Compression.fp16)
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    assert {dtype for submission in engine.log for dtype in submission.dtypes} == {_core.FLOAT16}
