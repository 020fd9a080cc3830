"""Handing a signal to those ranks that have a handler for it.

The default action of SIGUSR1 and of its like ends a process, so it goes to no other. The rank may be below a
shell or another program, so its tree is searched from the top: on each branch the first process with a
handler gets the signal. Those below it do not: workers of a data loader inherit the handler of their parent.
"""

from __future__ import annotations

import os

from horovod.bootstrap.place.proc import lines, signals_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.bootstrap.place.proc import Stat

__all__ = ["pass_on"]

_NEARLY_ALL = (1 << 31) - 1 & ~(1 << 8 | 1 << 18)  # but SIGKILL and SIGSTOP, which nobody can block


def pass_on(ranks: Mapping[int, int], below: Mapping[int, Stat], signum: int) -> tuple[list[int], list[int]]:
    """Send a signal to the processes of ranks that have a handler for it.

    Args:
        ranks: by process id.
        below: all processes below this one.

    Returns:
        The ranks that it was sent to, and those without a handler.
    """
    children: dict[int, list[int]] = {}
    for pid, stat in below.items():
        children.setdefault(stat.parent, []).append(pid)
    found: tuple[list[int], list[int]] = ([], [])
    for pid, rank in ranks.items():
        found[0 if _send_below(pid, children, signum) else 1].append(rank)
    return found


def _send_below(top: int, children: Mapping[int, list[int]], signum: int) -> bool:
    sent = False
    to_look_at = [top]
    while to_look_at:
        pid = to_look_at.pop()
        if _takes(pid, signum) and _send(pid, signum):
            sent = True
        else:
            to_look_at += children.get(pid, [])
    return sent


def _send(pid: int, signum: int) -> bool:
    try:
        os.kill(pid, signum)
    except OSError:  # it has ended, or is not ours to signal (setuid)
        return False
    return True


def _takes(pid: int, signum: int) -> bool:
    """Return whether it has a handler, or has blocked the signal in all threads, to read it from a descriptor
    or in a thread that waits for it. A program that blocks everything does so for a moment, as ``fork`` does.
    """
    bit = 1 << (signum - 1)
    if signals_of(f"/proc/{pid}/status", "SigCgt") & bit:
        return True
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    blocked = [
        signals_of(f"/proc/{pid}/task/{thread}/status", "SigBlk")
        for thread in threads
        if not _waits_for_a_signal(f"/proc/{pid}/task/{thread}/wchan")
    ]
    return bool(blocked) and all(each & bit and each & _NEARLY_ALL != _NEARLY_ALL for each in blocked)


def _waits_for_a_signal(wchan: str) -> bool:
    """Return whether a thread is in ``sigwait``: for that time the signal does not count as blocked there."""
    return any("sigtimedwait" in line for line in lines(wchan))
