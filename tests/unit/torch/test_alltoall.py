"""Splits of `hvd.alltoall`: what is refused before anything is submitted, and what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.torch.conftest import MakeWorld

import horovod.torch as hvd
from horovod import _core

pytestmark = pytest.mark.timeout(30)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("rows", "splits", "message"),
    [
        (3, None, "divisible"),
        (3, [], "divisible"),
        (3, int32(), "divisible"),
        (3, int32(2, 2), "greater than the number of rows"),
        (3, int32(3), "differs from that of members"),
        (3, int32(1, 1, 1), "differs from that of members"),
        (3, int32(4, -1), "negative"),
        (3, torch.tensor([1.0, 2.0]), "int32"),
        (3, torch.tensor([1, 2]), "int32"),
        (3, int32(1, 2).reshape(1, 2), "one dimension"),
        (3, torch.tensor(3, dtype=torch.int32), "one dimension"),
        (3, [1.0, 2.0], "integers"),
        (3, "12", "integers"),
        (3, [[1, 2]], "one dimension"),
        (3, 3, "one dimension"),
    ],
)
def test_splits_that_are_refused(rows: int, splits: Any, message: str, make_world: MakeWorld) -> None:
    engine = make_world(2)
    for tensor in (torch.ones(rows, 2), torch.ones(rows, 2, requires_grad=True)):
        for call in (hvd.alltoall, hvd.alltoall_async):
            with pytest.raises(ValueError, match=message):
                call(tensor, splits)
    assert engine.log == []


def test_a_tensor_without_dimensions_is_refused(make_world: MakeWorld) -> None:
    make_world(2)
    for splits in (None, [1, 1]):
        with pytest.raises(ValueError, match="without dimensions"):
            hvd.alltoall(torch.tensor(1.0), splits)


def test_counts_that_do_not_fit_into_int32_are_refused(make_world: MakeWorld) -> None:
    engine = make_world(1)
    with pytest.raises(ValueError, match="More than 2147483647 rows"):
        hvd.alltoall(torch.ones(1, 0).expand(2**31, 0).contiguous())
    assert engine.log == []


@pytest.mark.parametrize(
    "splits", [int32(2, 1), [2, 1], (2, 1), np.array([2, 1]), range(2, 0, -1)], ids=lambda s: type(s).__name__
)
def test_splits_of_every_kind(splits: Any, make_world: MakeWorld) -> None:
    engine = make_world(2)
    result, received = hvd.alltoall(torch.arange(6.0).reshape(3, 2), splits, name="x")
    assert engine.log[0].splits == (2, 1)
    assert (engine.log[0].kind, engine.log[0].name, engine.log[0].mode) == (
        _core.ALLTOALL,
        "x",
        _core.BLOCKING,
    )
    assert result.tolist() == [[0.0, 1.0], [2.0, 3.0]] * 2
    assert received.dtype == torch.int32
    assert received.tolist() == [2, 2]


def test_without_splits_only_the_tensor_comes_back(make_world: MakeWorld) -> None:
    make_world(2)
    result = hvd.alltoall(torch.ones(4))
    assert isinstance(result, torch.Tensor)
    assert result.shape == (4,)


def test_empty_splits_are_even_ones_and_the_pair_comes_back(make_world: MakeWorld) -> None:
    make_world(2)
    empty: list[Any] = [[], int32()]
    for splits in empty:
        result, received = hvd.alltoall(torch.ones(4), splits)
        assert (result.shape, received.tolist()) == ((4,), [2, 2])


def test_an_asynchronous_alltoall_always_gives_the_pair(make_world: MakeWorld) -> None:
    engine = make_world(2)
    for splits in (None, [2, 2]):
        result, received = hvd.synchronize(hvd.alltoall_async(torch.ones(4), splits))
        assert (result.shape, received.tolist()) == ((4,), [2, 2])
    assert [submission.mode for submission in engine.log] == [_core.ASYNCHRONOUS] * 2


def test_the_last_rows_may_stay_home(make_world: MakeWorld) -> None:
    make_world(2)
    x = torch.ones(5, 2, requires_grad=True)
    result, received = hvd.alltoall(x, [1, 1])
    assert result.shape == (2, 2)
    assert not received.requires_grad
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 1.0]] * 2 + [[0.0, 0.0]] * 3


def test_counts_of_a_set_are_those_of_its_members(make_world: MakeWorld) -> None:
    make_world(4)
    some = hvd.add_process_set([0, 2])
    result, received = hvd.alltoall(torch.ones(3), [2, 1], process_set=some)
    assert (result.shape, received.tolist()) == ((4,), [2, 2])
    with pytest.raises(ValueError, match="differs from that of members"):
        hvd.alltoall(torch.ones(4), [1, 1, 1, 1], process_set=some)
