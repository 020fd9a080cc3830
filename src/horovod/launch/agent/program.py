"""The program: a guard, and below it the agent."""

from __future__ import annotations

import os
import signal
import sys
import time

from horovod.launch.agent.processes import adopt_orphans, die_with_parent, signal_all, survive
from horovod.launch.agent.terms import GIVE_UP_S
from horovod.launch.agent.watch import Agent


def main() -> None:
    remote = sys.argv[1:] == ["remote"]
    if os.getpgid(0) != os.getpid():
        if not remote:
            sys.exit("the agent is started by horovodrun, in a session of its own")
        os.setsid()  # below a login shell
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how children have ended
    adopt_orphans()
    launcher = _watch_parent()
    guard = os.getpid()
    agent = os.fork()
    if agent:
        os._exit(_guard(agent))  # the launcher waits for both: nothing is left to tidy up
    adopt_orphans()
    die_with_parent(signal.SIGTERM)
    kept = Agent(remote, [] if launcher is None else [launcher])
    if os.getppid() == guard:
        kept.run()
    os._exit(0)


def _guard(agent: int) -> int:
    """Wait for the agent. If it was killed, kill what the ranks have started, which are this process's
    children then."""
    survive()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: os.kill(agent, signum))
    _, status = os.waitpid(agent, 0)
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
