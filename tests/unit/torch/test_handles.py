"""Handles and results of `horovod.torch`: what is returned, what is consumed, and what lives until then."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld

import horovod.torch as hvd
from horovod.errors import DuplicateNameError
from horovod.torch.autograd import collectives

pytestmark = pytest.mark.timeout(30)


def test_in_place_results_are_the_argument(make_world: MakeWorld) -> None:
    make_world(3)
    leaf = torch.nn.Parameter(torch.ones(2))
    assert hvd.allreduce_(leaf, op=hvd.Sum) is leaf
    assert leaf.tolist() == [3.0, 3.0]
    members = [torch.ones(1), torch.ones(2, dtype=torch.int32)]
    results = hvd.grouped_allreduce_(members, op=hvd.Sum)
    assert isinstance(results, tuple)
    assert all(a is b for a, b in zip(results, members, strict=True))


def test_result_types_of_groups(make_world: MakeWorld) -> None:
    make_world(2)
    pair = [torch.ones(1), torch.ones(2)]
    assert isinstance(hvd.grouped_allreduce(pair), list)
    assert isinstance(hvd.grouped_allgather(pair), tuple)
    assert isinstance(hvd.synchronize(hvd.grouped_allreduce_async(pair)), tuple)
    assert isinstance(hvd.synchronize(hvd.grouped_allgather_async(pair)), tuple)


def test_handles_are_consumed_once(make_world: MakeWorld) -> None:
    make_world(2)
    handle = hvd.allreduce_async(torch.ones(1))
    assert isinstance(handle, int)
    assert hvd.poll(handle) in (True, False)
    assert hvd.synchronize(handle) is not None
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError):
        hvd.poll(handle)
    with pytest.raises(ValueError):
        hvd.poll(4711)
    assert hvd.synchronize(4711) is None


def test_handles_of_failed_operations_are_consumed(make_world: MakeWorld) -> None:
    engine = make_world(2)
    engine.failing.add("x")
    handle = hvd.allreduce_async(torch.ones(1), name="x")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None


def test_tensors_live_until_synchronize(make_world: MakeWorld) -> None:
    make_world(2)
    tensor = torch.ones(4)
    alive = weakref.ref(tensor)
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
    del tensor
    gc.collect()
    assert alive() is not None
    assert hvd.synchronize(handle).tolist() == [2.0] * 4
    gc.collect()
    assert alive() is None


def test_an_interrupted_wait_keeps_the_tensors(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_world(2)
    handle = hvd.allreduce_async(torch.ones(1))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "wait", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
    assert handle in collectives.table.pending
    assert hvd.synchronize(handle) is not None


def test_duplicate_names_are_value_errors(make_world: MakeWorld) -> None:
    make_world(2)
    first = hvd.allreduce_async(torch.ones(1), name="x")
    with pytest.raises(ValueError, match="same name as another tensor") as info:
        hvd.allreduce_async(torch.ones(1), name="x")
    assert isinstance(info.value, DuplicateNameError)
    assert hvd.synchronize(first) is not None
