"""Which tests stay together when several processes run them (pytest-xdist), and how lean their processes are.

The groups of pytest-xdist's own ``--dist loadgroup`` do not hold: it writes them into a field that pytest 9.2
no longer has, and says nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

LEAN = str(Path(__file__).parent / "lean")
if "FARANDOLE_FULL_MATRIX" not in os.environ and LEAN not in sys.path:
    # For this process, too: it has begun without.
    sys.path.append(LEAN)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), LEAN]))
    importlib.import_module("tests.lean.sitecustomize")

# Builds of PyTorch with CUDA bring Triton. Its LLVM crashes in a process that has loaded TensorFlow's before.
with contextlib.suppress(ImportError):
    importlib.import_module("triton")

# What a shell starts in the background ignores the first, what `nohup` starts the second. Tests send them to
# what they start, and a process that is born with an ignored signal leaves it so.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture
def whole_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started end as those of users do (`tests/lean`)."""
    monkeypatch.setenv("FARANDOLE_WHOLE_END", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a session comes first, as it takes long. Tests that wait are spread among those that
    compute: the processors are neither idle then, nor asked for by all. Tests of one kind keep their order.
    """
    kinds = [item.nodeid.startswith(WAITING) for item in items]
    size = {kind: kinds.count(kind) for kind in (False, True)}
    seen = dict.fromkeys(size, 0)
    places: dict[str, tuple[bool, float]] = {}
    for item, kind in zip(items, kinds, strict=True):
        first = item.nodeid.startswith(ONE_SESSION)
        places.setdefault(group_of(item.nodeid), (not first, seen[kind] / size[kind]))
        seen[kind] += 1
    items.sort(key=lambda item: places[group_of(item.nodeid)])


WORLD_FIRST = ("test_torch", "test_tensorflow", "test_keras")
"""Tests whose ids begin with the world, or the framework, of the job of ranks that runs all cases of it."""

ONE_SESSION = ("tests/ray/", "tests/spark/")
"""Folders. The files of each share a cluster of Ray, or a session of Spark and its tables, which take longer
to make than most of their tests."""

WAITING = ("tests/elastic/", "tests/hosts/", "tests/launch/")
"""Folders whose tests wait for most of their time: for starts, limits of silence, and ends."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Groups come in the order of their tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    """The tests of a file stay together, as they share fixtures, some with those of other files. Cases of one
    job of ranks stay together, as the job runs once in each process that asks for one of them; other jobs of
    that file may go elsewhere.
    """
    file, _, test = nodeid.partition("::")
    for folder in ONE_SESSION:
        if file.startswith(folder):
            return folder
    if not file.startswith("tests/contract/"):
        return file
    function, _, parameters = test.partition("[")
    return (
        f"{file}::{function}[{parameters.partition('-')[0]}"
        if function in WORLD_FIRST
        else f"{file}::{function}"
    )
