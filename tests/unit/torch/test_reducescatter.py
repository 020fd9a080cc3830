"""`hvd.reducescatter`: arguments, results and gradients over an engine whose ranks all hold the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from torch._subclasses.fake_tensor import FakeTensorMode

import horovod.torch as hvd
from horovod import _core

pytestmark = pytest.mark.timeout(30)

CALLS: dict[str, Callable[..., Any]] = {
    "reducescatter": hvd.reducescatter,
    "reducescatter_async": hvd.reducescatter_async,
    "grouped_reducescatter": lambda t, **o: hvd.grouped_reducescatter([torch.ones(2), t], **o),
    "grouped_reducescatter_async": lambda t, **o: hvd.grouped_reducescatter_async([torch.ones(2), t], **o),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_operators_other_than_average_and_sum_are_refused(
    call: Callable[..., Any], make_world: MakeWorld
) -> None:
    engine = make_world(2)
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product, 17):
        with pytest.raises(hvd.HorovodInternalError, match="Average and Sum only"):
            call(torch.ones(2), op=op)
    with pytest.raises(TypeError):
        call(torch.ones(2), op=None)
    assert engine.log == []


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_tensor_without_dimensions_is_refused(call: Callable[..., Any], make_world: MakeWorld) -> None:
    engine = make_world(2)
    with pytest.raises(ValueError, match="without dimensions"):
        call(torch.tensor(1.0))
    assert engine.log == []


def test_the_process_set_comes_before_the_factors(make_world: MakeWorld) -> None:
    engine = make_world(2)
    hvd.reducescatter(torch.ones(2), "a", hvd.Compression.none, hvd.Sum, hvd.global_process_set, 2.0, 3.0)
    hvd.synchronize(
        hvd.grouped_reducescatter_async([torch.ones(2)], "b", hvd.Average, hvd.global_process_set, 2.0, 3.0)
    )
    assert [(s.kind, s.name, s.op, s.prescale, s.postscale, s.mode) for s in engine.log] == [
        (_core.REDUCESCATTER, "a", hvd.Sum, 2.0, 3.0, _core.BLOCKING),
        (_core.REDUCESCATTER, "b", hvd.Average, 2.0, 3.0, _core.ASYNCHRONOUS),
    ]


def test_results_of_groups_are_lists_and_tuples(make_world: MakeWorld) -> None:
    make_world(2)
    pair = [torch.ones(4), torch.ones(3, 2, dtype=torch.int32)]
    results = hvd.grouped_reducescatter(pair, op=hvd.Sum)
    assert isinstance(results, list)
    assert [result.tolist() for result in results] == [[2.0, 2.0], [[2, 2], [2, 2]]]
    assert isinstance(hvd.synchronize(hvd.grouped_reducescatter_async(pair)), tuple)


def test_compression_is_around_the_reduction(make_world: MakeWorld) -> None:
    engine = make_world(2)
    result = hvd.reducescatter(torch.ones(2), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert (result.dtype, result.tolist()) == (torch.float32, [2.0])
    (grouped,) = hvd.grouped_reducescatter([torch.ones(2)], compression=hvd.Compression.fp16)
    assert (grouped.dtype, grouped.tolist()) == (torch.float32, [1.0])
    assert [submission.dtypes for submission in engine.log] == [[_core.FLOAT16]] * 2


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"op": hvd.Average}, 1.0),
        ({"op": hvd.Sum}, 2.0),
        ({"op": hvd.Average, "prescale_factor": 3.0}, 3.0),
        ({"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0}, 3.0),
    ],
)
def test_gradients_are_gathered_and_scaled(
    grouped: bool, options: dict[str, Any], expected: float, make_world: MakeWorld
) -> None:
    make_world(2)
    x = torch.ones(4, requires_grad=True)
    y = hvd.grouped_reducescatter([x], **options)[0] if grouped else hvd.reducescatter(x, **options)
    upstream = torch.ones(2)
    y.backward(upstream)
    assert x.grad is not None
    assert x.grad.tolist() == [expected] * 4
    assert upstream.tolist() == [1.0, 1.0]


def test_integers_of_a_group_have_no_gradient(make_world: MakeWorld) -> None:
    make_world(2)
    x = torch.ones(4, requires_grad=True)
    for call in (hvd.grouped_reducescatter, hvd.grouped_allreduce, hvd.grouped_allgather):
        results = call([x, torch.ones(2, dtype=torch.int64)])
        assert results[0].requires_grad
        assert not results[1].requires_grad
        results[0].sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_empty_share_on_a_device_is_taken(call: Callable[..., Any], make_world: MakeWorld) -> None:
    """It has no address, so the engine has a result of its own for it, which stays until it is fetched."""
    engine = make_world(2)
    engine.on_device = True
    made = call(torch.empty(0, 3))
    if isinstance(made, int):
        made = hvd.synchronize(made)
    share = made[1] if isinstance(made, list | tuple) else made
    assert share.shape == (0, 3)
    assert engine.pending == {}


class Tagged(torch.Tensor):
    """Has something that new tensors of its class would lack."""

    def new_empty(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_share_is_a_plain_tensor(call: Callable[..., Any], make_world: MakeWorld) -> None:
    make_world(2)
    made = call(torch.ones(4, 3).as_subclass(Tagged))
    if isinstance(made, int):
        made = hvd.synchronize(made)
    share = made[1] if isinstance(made, list | tuple) else made
    assert type(share) is torch.Tensor
    assert share.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("call", [*CALLS.values(), hvd.alltoall_async], ids=[*CALLS, "alltoall_async"])
def test_memory_that_is_none_is_refused_before_anything_is_submitted(
    call: Callable[..., Any], make_world: MakeWorld
) -> None:
    engine = make_world(2)
    tensor = torch.ones(4, 3)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match="no memory of its own"):
        call(tensor)
    assert engine.log == []
