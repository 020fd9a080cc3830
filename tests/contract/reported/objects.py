"""Reports about Python objects that travel between ranks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()


def goes_on() -> None:
    """The world is as good as before."""
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@CASES.add
def what_the_root_cannot_pickle_is_an_error_everywhere() -> None:
    """TensorRT-LLM over MPI: pickling failed on the root, and the others waited for its bytes for ever."""
    root = hvd.size() - 1
    if hvd.rank() == root:
        with pytest.raises(TypeError, match="pickle"):
            hvd.broadcast_object({"lock": threading.Lock()}, root, name="lock")
    else:
        said = f"Rank {root} could not pickle its object, a dict: TypeError: .*lock.*"
        with pytest.raises(ValueError, match=said):
            hvd.broadcast_object(None, root, name="lock")
    goes_on()


@CASES.add
def what_one_rank_cannot_pickle_is_an_error_everywhere() -> None:
    """PyTorch's ``all_gather_object``: metrics of one rank held a generator; the others never came back."""
    mine = (number for number in range(3)) if hvd.rank() == 0 else [1, 2]
    with pytest.raises(
        TypeError if hvd.rank() == 0 else ValueError, match="generator" if hvd.rank() else "pickle"
    ):
        hvd.allgather_object(mine, name="metrics")
    goes_on()


class Demanding(Exception):
    """Pickles, but cannot be made again: pickle calls the class with ``args`` alone."""

    def __init__(self, file: str, line: int) -> None:
        super().__init__(file)
        self.line = line


@CASES.add
def an_exception_that_cannot_be_made_again_fails_on_all_receivers() -> None:
    """Ray and multiprocessing: an exception with two arguments was sent, and the receiver hung or died
    without a word."""
    with pytest.raises(TypeError, match="line"):
        hvd.allgather_object(Demanding("a.py", 3) if hvd.rank() == 0 else None, name="exception")
    goes_on()


@CASES.add
def objects_do_not_follow_the_default_device() -> None:
    """PyTorch: with ``set_default_device`` the helpers of ``broadcast_object_list`` were made on that
    device, and sizes were read from one without values."""
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        assert hvd.broadcast_object({"epoch": hvd.rank()}, 0) == {"epoch": 0}
        assert hvd.allgather_object(hvd.rank(), name="ranks") == list(range(hvd.size()))
        assert hvd.join() in range(hvd.size())
    finally:
        torch.set_default_device(before)


@CASES.add
def what_is_the_same_object_stays_the_same() -> None:
    """Accelerate: configurations that shared a list no longer did after they had been broadcast."""
    shared: list[Any] = []
    shared.append(shared)
    first, second = hvd.broadcast_object((shared, {"again": shared}), 0)
    assert first is second["again"]
    assert first[0] is first
