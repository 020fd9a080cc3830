"""A launcher of the user's own that deals out ranks anew: it keeps one `RendezvousServer`, announces a plan
for each world, and tells live processes their new ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from horovod.runner.common.util import hosts
from horovod.runner.gloo_run import RendezvousServer, create_run_env_vars

RANK = Path(__file__).with_name("renumbered_rank.py")
OF_A_JOB = ("HOROVOD_SECRET_KEY", "HOROVOD_JOB_ID", "HOROVOD_STORE")
pytestmark = pytest.mark.timeout(150)


class Launcher:
    """Starts processes, and tells them who they are."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.server = RendezvousServer()
        self._port = self.server.start()
        stack.callback(self.server.stop)

    def start(self) -> subprocess.Popen[str]:
        bare = {name: os.environ[name] for name in ("PATH", "HOME")}
        common = create_run_env_vars("127.0.0.1", ["lo"], self._port)
        process = subprocess.Popen(
            [sys.executable, str(RANK)],
            env={**bare, **common, "HOROVOD_START_TIMEOUT": "100"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def plan(self, size: int) -> None:
        self.server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{size}"), size))

    def meet(self, ranks: Sequence[subprocess.Popen[str]]) -> None:
        """A world of these, by rank."""
        self.plan(len(ranks))
        for rank, process in enumerate(ranks):
            tell(process, rank, len(ranks))
        check(ranks)


def tell(process: subprocess.Popen[str], rank: int, size: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{rank} {size}\n")
    process.stdin.flush()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def check(ranks: Sequence[subprocess.Popen[str]]) -> None:
    size = len(ranks)
    total = size * (size + 1) / 2
    assert [said(process) for process in ranks] == [f"{rank} {size} {total}" for rank in range(size)]


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    for name in (*OF_A_JOB, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with ExitStack() as stack:
        yield Launcher(stack)


def test_live_processes_get_other_ranks(launcher: Launcher) -> None:
    a, b, c = (launcher.start() for _ in range(3))
    launcher.meet([a, b, c])
    a.kill()
    a.wait()
    launcher.meet([b, c])
    launcher.meet([c, b])  # they change places
    launcher.meet([b, launcher.start(), c])  # and one comes
    launcher.meet([c])
    launcher.meet([b, c])


def test_who_waits_for_the_world_before_is_told(launcher: Launcher) -> None:
    """One was told a rank of a world that does not come about, and one hears of it late."""
    a, b, c = (launcher.start() for _ in range(3))
    launcher.plan(4)
    tell(a, 0, 4)
    tell(b, 1, 4)
    launcher.plan(3)
    for early in (a, b):
        assert "announced" in said(early)
    tell(c, 3, 4)
    late = said(c)
    assert "Rank 3 of 4" in late
    assert "the launcher has announced one of 3 ranks. Ask it" in late
    for rank, process in enumerate((c, a, b)):
        tell(process, rank, 3)
    check([c, a, b])


def test_who_comes_with_its_rank_of_the_world_before_is_told(launcher: Launcher) -> None:
    a, b = (launcher.start() for _ in range(2))
    launcher.meet([a, b])
    launcher.plan(2)  # of the same size: only the rank is wrong
    tell(a, 0, 2)
    tell(b, 0, 2)
    for process in (a, b):
        text = said(process)
        assert "Two processes say that they are rank 0" in text
        assert "was one of them given its rank for an earlier world?" in text
    launcher.meet([b, a])
