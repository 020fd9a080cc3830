"""Which tests stay together when several processes run them (pytest-xdist).

The groups of pytest-xdist's own ``--dist loadgroup`` do not hold: it writes them into a field that pytest 9.2
no longer has, and says nothing.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# Builds of PyTorch with CUDA bring Triton. Its LLVM crashes in a process that has loaded TensorFlow's before.
with contextlib.suppress(ImportError):
    importlib.import_module("triton")

WORLD_FIRST = ("test_torch", "test_tensorflow", "test_keras")
"""Tests whose ids begin with the world, or the framework, of the job of ranks that runs all cases of it."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Groups come in the order of their names: the longest, of ranks and hosts, are not among the last."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    """The tests of a file stay together, as they share fixtures. Cases of one job of ranks stay together, as
    the job runs once in each process that asks for one of them; other jobs of that file may go elsewhere.
    """
    file, _, test = nodeid.partition("::")
    if not file.startswith("tests/contract/"):
        return file
    function, _, parameters = test.partition("[")
    return (
        f"{file}::{function}[{parameters.partition('-')[0]}"
        if function in WORLD_FIRST
        else f"{file}::{function}"
    )
