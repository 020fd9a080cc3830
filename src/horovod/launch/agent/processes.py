"""Starting ranks, and finding and ending everything that is below this process."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

from horovod.bootstrap.place.proc import every_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod.bootstrap.place.proc import Stat

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
