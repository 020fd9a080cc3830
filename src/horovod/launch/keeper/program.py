"""The program: a guard, and below it the keeper."""

from __future__ import annotations

import os
import signal
import sys
import time

from horovod.launch.keeper.processes import adopt_orphans, die_with_parent, signal_all
from horovod.launch.keeper.terms import GIVE_UP_S
from horovod.launch.keeper.watch import Keeper


def main() -> None:
    remote = sys.argv[1:] == ["remote"]
    if os.getpgid(0) != os.getpid():
        if not remote:
            sys.exit("the keeper is started by horovodrun, in a session of its own")
        os.setsid()  # below a login shell
    adopt_orphans()
    launcher = _watch_parent()
    guard = os.getpid()
    keeper = os.fork()
    if keeper:
        sys.exit(_guard(keeper))
    adopt_orphans()
    die_with_parent(signal.SIGTERM)
    kept = Keeper(remote, [] if launcher is None else [launcher])
    if os.getppid() == guard:
        kept.run()


def _guard(keeper: int) -> int:
    """Wait for the keeper; if it was killed, kill what it kept. The ranks' children have come to us then."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: os.kill(keeper, signum))
    _, status = os.waitpid(keeper, 0)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    if status == 0:
        return 0
    give_up_at = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_at:
        signal_all(signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.01)  # no event tells that the last descendant of many has died
    return 1


def _watch_parent() -> int | None:
    """A descriptor that becomes readable when the launcher ends.

    Standard input says the same, unless the launcher's end of it was inherited by a forked child of its.
    """
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):  # a kernel before 5.3
        return None
