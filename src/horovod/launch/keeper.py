"""The process that stands between the launcher and the ranks of one host.

It is the parent of all ranks, adopts whatever they leave behind, and ends everything when it is told to or
when the launcher is gone for any reason, SIGKILL included: the launcher holds the other end of its standard
input. If the keeper itself is killed, the kernel kills the ranks (parent-death signal).

Run as a program by its path, isolated and without site packages, so it starts in about 10 ms: it must import
nothing but a little of the standard library. It speaks lines of JSON. In, on standard input: first the plan
(see `_Keeper.start`), then `{"end": signum}` or `{"kill": true}`. Out, on standard output: the events of
`horovod.launch.launcher`, each as `{"event": name, field: value, ...}`. Arguments and environment are bytes
to the system; here each byte is one character (Latin-1), so that any byte survives JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

GRACE_S = 5.0  # between the first signal and SIGKILL
LINGER_S = 0.5  # how long processes that ranks left behind may take to end by themselves
GIVE_UP_S = 5.0  # after SIGKILL: a process stuck in the kernel cannot be ended by anybody
KILL_INTERVAL_S = 0.1  # SIGKILL is repeated: a process may have been forked while we looked

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))

TYPE_CHECKING = False  # importing typing would cost as much as all the rest
if TYPE_CHECKING:
    from typing import Any


class _Keeper:
    def __init__(self) -> None:
        self._ranks: dict[int, int] = {}  # pid -> rank, of ranks that still run
        self._input = b""
        self._poller = select.poll()
        self._ending = False
        self._kill_at = 0.0
        self._give_up_at = 0.0
        self._linger_until = 0.0
        self._told_to_end = False
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become the reaper of the ranks' children")

    def run(self) -> None:
        while b"\n" not in self._input:
            if not self._read_input():
                return
        line, _, self._input = self._input.partition(b"\n")
        self._start(json.loads(line))
        self._obey()
        self._poller.register(self._wake, select.POLLIN)
        self._poller.register(0, select.POLLIN)
        launcher = _watch_parent()
        if launcher is not None:
            self._poller.register(launcher, select.POLLIN)
        while not self._step():
            for descriptor, _ in self._poller.poll(self._timeout_ms()):
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                elif descriptor == 0 and self._read_input():
                    self._obey()
                else:
                    self._poller.unregister(descriptor)
                    self._told_to_end = True
            if self._told_to_end:
                self._end(signal.SIGTERM)

    # Starting.

    def _start(self, plan: dict[str, Any]) -> None:
        """Start the ranks of `plan`: command, environment, nofile (limit on descriptors), and per rank its
        number, own environment, and the descriptors for its stdout and stderr."""
        command = [word.encode("latin-1") for word in plan["command"]]
        common = _encoded(plan["environment"])
        for worker in plan["workers"]:
            for stream in ("stdout", "stderr"):
                os.set_inheritable(worker[stream], False)
        refused = False
        for worker in plan["workers"]:
            if not refused:
                environment = {**common, **_encoded(worker["environment"])}
                pid, errno = _spawn(command, environment, worker["stdout"], worker["stderr"], plan["nofile"])
                if errno:
                    refused = True
                    _emit("refused", rank=worker["rank"], errno=errno)
                    self._end(signal.SIGTERM)
                else:
                    self._ranks[pid] = worker["rank"]
                    _emit("started", rank=worker["rank"], pid=pid)
            os.close(worker["stdout"])
            os.close(worker["stderr"])

    # Watching.

    def _step(self) -> bool:
        """Look after everything that is due; whether nothing is left to do."""
        if self._reap():
            _emit("finished", survivors=[])
            return True
        now = time.monotonic()
        if not self._ranks and not self._ending:
            if not self._linger_until:
                self._linger_until = now + LINGER_S
            elif now >= self._linger_until:
                _emit("left_behind", processes=len(_descendants()))
                self._end(signal.SIGTERM)
        if self._ending and now >= self._kill_at:
            if self._give_up_at and now >= self._give_up_at:
                _emit("finished", survivors=sorted(_descendants()))
                return True
            self._kill()
        return False

    def _reap(self) -> bool:
        """Collect the dead; whether no child is left, and so, as we adopt orphans, no descendant."""
        exited = []
        childless = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                childless = True
                break
            if pid == 0:
                break
            if pid in self._ranks:
                exited.append((os.waitstatus_to_exitcode(status), self._ranks.pop(pid)))
        # Of ranks found dead together, those killed by a signal are more likely the cause than the victims.
        for exit_code, rank in sorted(exited, key=lambda one: one[0] >= 0):
            _emit("exited", rank=rank, exit_code=exit_code)
        return childless

    def _timeout_ms(self) -> int | None:
        if self._ending:
            due = self._kill_at
        elif not self._ranks:
            due = self._linger_until
        else:
            return None
        return max(0, int((due - time.monotonic()) * 1000) + 1)

    # Ending.

    def _end(self, signum: int) -> None:
        if self._ending:
            return
        self._ending = True
        self._kill_at = time.monotonic() + GRACE_S
        _signal_all(signum)

    def _kill(self) -> None:
        now = time.monotonic()
        self._ending = True
        self._kill_at = now + KILL_INTERVAL_S
        self._give_up_at = self._give_up_at or now + GIVE_UP_S
        _signal_all(signal.SIGKILL)

    def _on_signal(self, *_: object) -> None:
        self._told_to_end = True

    # Listening.

    def _read_input(self) -> bool:
        """Read what is there; false when the launcher is gone."""
        data = os.read(0, 1 << 20)
        self._input += data
        return bool(data)

    def _obey(self) -> None:
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "end" in request:
                self._end(request["end"])
            elif request.get("kill"):
                self._kill()


def _watch_parent() -> int | None:
    """A descriptor that becomes readable when the launcher ends.

    Standard input says the same, unless the launcher's end of it was inherited by a forked child of its.
    """
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):  # a kernel before 5.3
        return None


def _spawn(
    command: list[bytes], environment: dict[bytes, bytes], stdout: int, stderr: int, nofile: int
) -> tuple[int, int]:
    """Start one rank in a session of its own; its process id and 0, or any and the errno of `exec`."""
    keeper = os.getpid()
    report_read, report_write = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != keeper:  # it died before the line above
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, other programs should not
                signal.signal(signum, signal.SIG_DFL)
            if nofile:
                _limit_descriptors(nofile)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(report_write, str(error.errno).encode())
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


def _descendants() -> dict[int, int]:
    """Process group by process id, of every live process below this one."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    # The name in parentheses may hold anything; then: state, parent, process group.
                    state, parent, group = stat.read().rpartition(b")")[2].split()[:3]
            except OSError:
                continue  # it is gone
            processes[int(name)] = (state, int(parent), int(group))
    below = {os.getpid()}
    grown = True
    while grown:
        found = {pid for pid, (_, parent, _) in processes.items() if parent in below} - below
        below |= found
        grown = bool(found)
    below.discard(os.getpid())
    return {pid: processes[pid][2] for pid in below if processes[pid][0] not in b"ZX"}


def _signal_all(signum: int) -> None:
    # By group, so that processes forked meanwhile are reached too. Every rank has a session of its own, so no
    # group of a descendant is ours or a stranger's. Signalling group 1 would mean every process there is.
    for group in {group for group in _descendants().values() if group > 1} - {os.getpgid(0)}:
        try:
            os.killpg(group, signum)
        except OSError:
            pass  # gone, or not ours to signal any more (setuid): `finished` names it


def _encoded(environment: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in environment.items()}


def _emit(event: str, **fields: object) -> None:
    try:
        os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")
    except OSError:
        pass  # the launcher is gone; its end of standard input says so too


if __name__ == "__main__":
    if os.getpgid(0) != os.getpid():
        sys.exit("the keeper is started by horovodrun, in a session of its own")
    _Keeper().run()
