"""Memory of the engine becomes tensors by PyTorch's exchange table, as by its public function."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from horovod import _core
from horovod.runtime import lifecycle
from horovod.torch import frontend
from horovod.torch.frontend import TorchFrontend

SHAPES = [(), (0,), (0, 3), (2, 0), (1,), (5,), (2, 3, 4)]


def refuse(*_: Any) -> None:
    raise AssertionError("the table makes it")


@pytest.fixture
def engine() -> Iterator[_core.Engine]:
    yield lifecycle.start(environ={}).engine
    lifecycle.stop()


@pytest.fixture
def take() -> Callable[[object, torch.Tensor], torch.Tensor]:
    """By the table alone."""
    assert frontend._EXCHANGE is not None
    made: Callable[[object, torch.Tensor], torch.Tensor] = _core.HostImporter(refuse, frontend._EXCHANGE).take
    return made


@pytest.mark.parametrize("dtype", frontend._CODES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_they_are_as_the_public_function_makes_them(
    dtype: torch.dtype, shape: tuple[int, ...], engine: _core.Engine
) -> None:
    like = torch.empty(3, dtype=dtype)
    for made in (
        TorchFrontend().from_dlpack(engine.empty(frontend._CODES[dtype], shape), like),
        _core.HostImporter(frontend._taken).take(engine.empty(frontend._CODES[dtype], shape), like),
    ):
        assert type(made) is torch.Tensor
        assert (made.dtype, made.shape) == (dtype, shape)
        assert made.is_contiguous()
        assert not made.requires_grad
        made.view(-1).view(torch.uint8).fill_(1)
        assert made.clone().view(-1).view(torch.uint8).eq(1).all()


@pytest.mark.parametrize("dtype", frontend._ORDINARY, ids=str)
def test_those_that_can_be_reduced_need_no_other_way(
    dtype: torch.dtype, engine: _core.Engine, take: Callable[..., torch.Tensor]
) -> None:
    assert take(engine.empty(frontend._CODES[dtype], (3,)), torch.empty(0)).dtype == dtype


def test_they_may_follow_what_autograd_does(engine: _core.Engine) -> None:
    made = TorchFrontend().from_dlpack(engine.empty(_core.FLOAT32, (3,)), torch.empty(0))
    made.requires_grad_()
    (made * 2).sum().backward()
    assert made.grad is not None
    assert made.grad.tolist() == [2.0] * 3


def test_memory_goes_back_when_nobody_has_it_any_more(
    engine: _core.Engine, take: Callable[..., torch.Tensor]
) -> None:
    like = torch.empty(0)
    first = take(engine.empty(_core.FLOAT32, (1024,)), like)
    address = first.data_ptr()
    part = first[5:]
    del first
    other = take(engine.empty(_core.FLOAT32, (1024,)), like)
    assert other.data_ptr() != address
    del other
    # The last owner may be a thread of the framework.
    owners = [part]
    del part
    thread = threading.Thread(target=owners.clear)
    thread.start()
    thread.join()
    kept = [take(engine.empty(_core.FLOAT32, (1024,)), like) for _ in range(2)]
    assert address in [each.data_ptr() for each in kept]


def test_they_outlive_the_engine(take: Callable[..., torch.Tensor]) -> None:
    engine = lifecycle.start(environ={}).engine
    made = take(engine.empty(_core.FLOAT32, (1024,)), torch.empty(0))
    lifecycle.stop()
    del engine
    made.fill_(3.0)
    assert made.sum().item() == 3072.0


def test_a_capsule_is_used_up(engine: _core.Engine, take: Callable[..., torch.Tensor]) -> None:
    capsule = engine.empty(_core.FLOAT32, (4,))
    made = take(capsule, torch.empty(0))
    with pytest.raises(RuntimeError, match="capsule"):
        TorchFrontend().from_dlpack(capsule, made)
    del capsule
    made.fill_(1.0)  # it still owns its memory
    assert made.sum().item() == 4.0


def test_whoever_runs_while_the_tensor_is_made_finds_the_capsule_used_up(
    engine: _core.Engine, take: Callable[..., torch.Tensor]
) -> None:
    like = torch.empty(0)
    found: list[str] = []

    def collected(phase: str, _: Any) -> None:
        if phase == "start" and not found:
            try:
                take(capsule, like)
            except AssertionError as error:
                found.append(str(error))
            else:
                found.append("a second owner")

    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        for _ in range(20):
            capsule = engine.empty(_core.FLOAT32, (300,))
            found.clear()
            gc.set_threshold(1)
            made = take(capsule, like)
            gc.set_threshold(*thresholds)
            made.fill_(1.0)
            assert made.sum().item() == 300.0
            assert found in ([], ["the table makes it"])
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*thresholds)


def test_a_tensor_that_cannot_be_made_leaves_the_memory_with_one_owner() -> None:
    pytest.importorskip("_testcapi", reason="this Python has no module of its own tests")
    script = """
import gc
import _testcapi
import torch
import horovod.torch as hvd
hvd.init()
given = torch.ones(300)
assert hvd.allgather(given).equal(given)
gc.disable()
failures = 0
for first in range(40):
    _testcapi.set_nomemory(first, first + 1)
    try:
        made = hvd.allgather(given)
    except (MemoryError, RuntimeError):
        made = None
    finally:
        _testcapi.remove_mem_hooks()
    failures += made is None
    made = None
    made = [hvd.allgather(given) for _ in range(3)]
    assert all(each.equal(given) for each in made)
    assert len({each.data_ptr() for each in made}) == 3
assert failures > 3, failures
hvd.shutdown()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


def test_a_capsule_of_another_library_goes_the_other_way() -> None:
    given = torch.arange(3.0)
    made = TorchFrontend().from_dlpack(given.__dlpack__(), given)
    assert made.data_ptr() == given.data_ptr()
    with pytest.raises(RuntimeError, match="capsule"):
        TorchFrontend().from_dlpack(None, given)


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3)])
def test_too_few_or_too_many_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match="take takes"):
        _core.HostImporter(refuse).take(*arguments)


def test_one_that_was_not_initialised_is_an_error() -> None:
    made = _core.HostImporter.__new__(_core.HostImporter)
    with pytest.raises(TypeError, match="__init__"):
        made.take(None, torch.ones(1))
