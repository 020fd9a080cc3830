"""Processes below this one: starting ranks, and finding, signalling and ending all that runs here."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time

from horovod.bootstrap.place.proc import every_process, lines, signals_of
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horovod.bootstrap.place.proc import Stat

NEVER = float("inf")

_KILL_INTERVAL_S = 0.1  # SIGKILL is repeated: a process may have been forked while we looked
_NEARLY_ALL = (1 << 31) - 1 & ~(1 << 8 | 1 << 18)  # but SIGKILL and SIGSTOP, which nobody can block
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))


def adopt_orphans() -> None:
    """From now on orphans of processes below this one become its children. Child processes do not inherit
    this."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of the ranks' children")


def die_with_parent(signum: int) -> None:
    """Get this signal when the parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def survive() -> None:
    """Do not end by signals that are meant for ranks. A handler, as a signal that is ignored would be ignored
    by the ranks as well.
    """
    for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(signum, lambda *_: None)


def spawn(
    command: list[bytes],
    environment: dict[bytes, bytes],
    stdin: int,
    source: str,
    stdout: int,
    stderr: int,
    handed_on: Sequence[int],
    nofile: int,
) -> tuple[int, int]:
    """Start one rank in a session of its own; its process id and 0, or any and the errno of `exec`.
    `stdin`: what it reads, -1: the file `source`. `handed_on`: descriptors that it keeps.

    Raises:
        OSError: there is no room for another process, or for its descriptors.
    """
    agent = os.getpid()
    report_read, report_write = os.pipe()  # closed by a successful exec
    try:
        pid = os.fork()
    except OSError:
        os.close(report_read)
        os.close(report_write)
        raise
    if pid == 0:
        try:
            os.setsid()
            die_with_parent(signal.SIGKILL)
            if os.getppid() != agent:  # it died before the line above
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, other programs should not
                signal.signal(signum, signal.SIG_DFL)
            if nofile:
                _limit_descriptors(nofile)
            os.dup2(stdin if stdin >= 0 else os.open(source, os.O_RDONLY), 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            for descriptor in handed_on:
                os.set_inheritable(descriptor, True)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(report_write, str(error.errno).encode())
        except ValueError:  # a limit on descriptors above the hard one
            os.write(report_write, str(errno.EINVAL).encode())
        finally:
            os._exit(127)
    os.close(report_write)
    with os.fdopen(report_read, "rb") as report:
        failure = report.read()
    if failure:
        os.waitpid(pid, 0)
        return pid, int(failure)
    return pid, 0


def _limit_descriptors(soft: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def descendants() -> dict[int, Stat]:
    """Every live process below this one, by its id."""
    processes = dict(every_process())
    below = {os.getpid()}
    grown = True
    while grown:
        found = {pid for pid, stat in processes.items() if stat.parent in below} - below
        below |= found
        grown = bool(found)
    below.discard(os.getpid())
    return {pid: processes[pid] for pid in below if processes[pid].state not in "ZX"}


def signal_all(signum: int) -> None:
    """Send it to everything below this process."""
    signal_groups(descendants().values(), signum)


def signal_groups(processes: Iterable[Stat], signum: int) -> None:
    """Send it to the groups of these descendants."""
    # By group, so that processes forked meanwhile are reached too. Every rank has a session of its own, so no
    # group of a descendant is ours, a stranger's or that of another rank. Signalling group 1 would mean every
    # process there is.
    for group in {stat.group for stat in processes if stat.group > 1} - {os.getpgid(0)}:
        try:
            os.killpg(group, signum)
        except OSError:
            pass  # gone, or not ours to signal any more (setuid): `finished` names it


class EndingProcesses:
    """The end of some processes: a signal, then SIGKILL after the grace time, again and again until none is
    left, or until it is plain that nobody can end them.
    """

    def __init__(self) -> None:
        self.begun = False
        self.due = NEVER
        """When to kill what is left."""
        self._give_up_at = NEVER

    def begin(self, processes: Iterable[Stat], signum: int) -> None:
        """The first signal counts."""
        if not self.begun:
            self.begun = True
            self.due = time.monotonic() + GRACE_S
            signal_groups(processes, signum)

    def kill(self, processes: Iterable[Stat]) -> None:
        now = time.monotonic()
        self.begun = True
        self.due = now + _KILL_INTERVAL_S
        self._give_up_at = min(self._give_up_at, now + GIVE_UP_S)
        signal_groups(processes, signal.SIGKILL)

    def given_up(self, now: float) -> bool:
        return now >= self._give_up_at


def pass_on(ranks: Mapping[int, int], below: Mapping[int, Stat], signum: int) -> tuple[list[int], list[int]]:
    """Send a signal to the processes of ranks that have a handler for it.

    The default action of SIGUSR1 and of its like ends a process, so it goes to no other. The rank may be
    below a shell or another program, so its tree is searched from the top: on each branch the first process
    with a handler gets the signal. Those below it do not: workers of a data loader inherit the handler of
    their parent.

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
