"""The process that stands between the launcher and the ranks of one host.

It is the parent of all ranks, adopts whatever they leave behind, and ends everything when it is told to or
when the launcher is gone for any reason: SIGKILL, a closed connection, or silence, if it is on another host.
If the keeper itself is killed, the kernel kills the ranks (parent-death signal), and its own parent, the
guard, what they have started.

Run as a program, isolated and without site packages, so it starts in about 10 ms: it must import nothing but
a little of the standard library. On another host its text arrives through ssh, so nothing needs to be
installed there; Python 3.7 is enough. It speaks lines of JSON. In, on standard input: first the plan (see
`_Keeper._start`), then `{"end": signum}`, `{"kill": true}`, `{"taken": bytes}` (of output) or
`{"beat": true}`; before a plan whose ranks call a function comes `{"call": bytes}`, and then these bytes.
Out, on standard output: the events of `horovod.launch.launcher`, each as
`{"event": name, field: value, ...}`. Arguments and environment are bytes to the system; here each byte is
one character (Latin-1), so that any byte survives JSON.

On the launcher's own host the ranks write to pipes of the launcher. On another host the keeper reads what
they print and sends it as the event `output`, followed by the bytes; never more than the launcher's window
beyond what it has taken, so that a slow reader of the output slows the ranks and nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

MARK = b"\nrueda keeper 1\n"  # what comes before it was printed by the shell of the host
GRACE_S = 5.0  # between the first signal and SIGKILL
LINGER_S = 0.5  # how long processes that ranks left behind may take to end by themselves
GIVE_UP_S = 5.0  # after SIGKILL: a process stuck in the kernel cannot be ended by anybody
KILL_INTERVAL_S = 0.1  # SIGKILL is repeated: a process may have been forked while we looked
BEAT_S = 1.0
PLAN_S = 60.0  # how long the launcher may need until the plan comes: it waits for the slowest host

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))

TYPE_CHECKING = False  # importing typing would cost as much as all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class _Launcher:
    """The two pipes to the launcher. To another host nothing here waits: a connection may stall."""

    def __init__(self, remote: bool) -> None:
        self.gone = False
        self.silence_s = PLAN_S if remote else 0.0  # 0: it is not expected to beat
        self.heard_at = time.monotonic()
        self._beat_at = self.heard_at
        self._input = b""
        self._call_left = 0  # bytes that are still to come
        self.call = -1  # memory that all ranks of this host read
        self._pending = bytearray()
        if remote:
            for descriptor in (0, 1):  # may be one socket
                os.set_blocking(descriptor, False)

    def read(self) -> None:
        """Take in what is there."""
        try:
            data = os.read(0, 1 << 20)
        except BlockingIOError:
            return
        except OSError:  # a socket that was closed with bytes unread
            data = b""
        self._input += data
        if self._call_left:
            self._keep_call()
        self.heard_at = time.monotonic()
        self.gone = self.gone or not data

    def requests(self) -> list[dict[str, Any]]:
        found = []
        while not self._call_left and b"\n" in self._input:
            line, _, self._input = self._input.partition(b"\n")
            request = json.loads(line)
            if "call" in request and "command" not in request:
                self.call = os.memfd_create("rueda-call")
                self._call_left = request["call"]
                self._keep_call()
            else:
                found.append(request)
        return found

    def _keep_call(self) -> None:
        kept = memoryview(self._input)[: self._call_left]
        self._call_left -= len(kept)
        self._input = self._input[len(kept) :]
        while kept:
            kept = kept[os.write(self.call, kept) :]

    def say(self, event: str, **fields: object) -> None:
        self.send(json.dumps({"event": event, **fields}).encode() + b"\n")

    def send(self, data: bytes) -> None:
        if not self.gone:
            self._pending += data
            self.flush()

    def flush(self) -> bool:
        """Write what fits; whether nothing is left."""
        try:
            while self._pending:
                del self._pending[: os.write(1, self._pending)]
        except BlockingIOError:
            return False
        except OSError:  # it is gone; its end of standard input says so too
            self._pending.clear()
        return True

    def look(self) -> None:
        """Send the beat that is due, and notice silence."""
        if not self.silence_s:
            return
        now = time.monotonic()
        if now >= self.heard_at + self.silence_s:
            self.gone = True
            self._pending.clear()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            if not self._pending:
                self.say("beat")

    def due_s(self) -> float:
        """When `look` has something to do."""
        if not self.silence_s or self.gone:
            return float("inf")
        return min(self._beat_at, self.heard_at + self.silence_s)

    def close(self) -> None:
        """Wait until the last word is out, as long as the launcher listens."""
        poller = select.poll()
        poller.register(1, select.POLLOUT)
        while not self.gone and not self.flush():
            poller.poll(int(BEAT_S * 1000))
            self.read()
            self.look()


class _Outputs:
    """What the ranks of this host print, on its way to the launcher on another one."""

    def __init__(self, launcher: _Launcher, poller: select.poll) -> None:
        self._launcher = launcher
        self._poller = poller
        self._open: dict[int, tuple[int, str]] = {}  # descriptor -> rank and stream
        self._credit = 0

    def add(self, rank: int, stream: str) -> int:
        """A new pipe; returns the end that the rank writes to."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._open[read_end] = (rank, stream)
        return write_end

    def allow(self, count: int) -> None:
        """The launcher takes `count` bytes more."""
        if self._credit <= 0 < self._credit + count:
            for descriptor in self._open:
                self._poller.register(descriptor, select.POLLIN)
        self._credit += count

    def forward(self, descriptor: int) -> bool:
        """Send what is there; whether there was something."""
        if descriptor not in self._open or self._credit <= 0:
            return False
        rank, stream = self._open[descriptor]
        try:
            data = os.read(descriptor, min(1 << 16, self._credit))
        except BlockingIOError:
            return False
        if not data:
            self._close(descriptor)
            return False
        self._credit -= len(data)
        if self._credit <= 0:
            for waiting in self._open:
                self._poller.unregister(waiting)
        self._launcher.say("output", rank=rank, stream=stream, size=len(data))
        self._launcher.send(data)
        return True

    def drained(self) -> bool:
        """Forward what is left in the pipes; whether that was all. A stranger may hold one open."""
        for descriptor in list(self._open):
            while self.forward(descriptor):
                pass
        if self._credit <= 0 and self._open:
            return False
        for descriptor in list(self._open):
            self._close(descriptor)
        return True

    def _close(self, descriptor: int) -> None:
        del self._open[descriptor]
        if self._credit > 0:
            self._poller.unregister(descriptor)
        os.close(descriptor)


class _Keeper:
    def __init__(self, remote: bool, above: list[int]) -> None:
        """`above`: descriptors that become readable when a process above this one ends."""
        self._remote = remote
        self._launcher = _Launcher(remote)
        self._poller = select.poll()
        self._outputs = _Outputs(self._launcher, self._poller)
        self._ranks: dict[int, int] = {}  # pid -> rank, of ranks that still run
        self._above = set(above)
        self._writing = False
        self._planned = False
        self._childless = False
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
        for descriptor in (0, self._wake, *above):
            self._poller.register(descriptor, select.POLLIN)

    def run(self) -> None:
        if self._remote:
            self._launcher.send(MARK)
            self._launcher.say("hello", **_facts())
        while not (self._told_to_end or self._planned):
            self._listen()
            self._obey()
        while self._planned and not self._step():
            self._listen()
            self._obey()
            if self._told_to_end:
                self._end(signal.SIGTERM)
        self._launcher.close()

    # Starting.

    def _start(self, plan: dict[str, Any]) -> None:
        """Start the ranks of `plan`: command, environment, nofile (limit on descriptors), and per rank its
        number and own environment. On the launcher's host each has descriptors for its stdout and stderr, and
        for its result if there is a call, which then is a descriptor, too. On another host the plan says:
        directory (to work in), defaults (environment where the host has none), silence_s (of the launcher
        that ends the job) and window (bytes of output).
        """
        self._planned = True
        command = [word.encode("latin-1") for word in plan["command"]]
        common = _encoded(plan["environment"])
        if self._remote:
            self._launcher.silence_s = plan["silence_s"]
            common = {**_encoded(plan["defaults"]), **os.environb, **common}
            try:
                os.chdir(plan["directory"].encode("latin-1"))
            except OSError as error:
                self._launcher.say("no_directory", errno=error.errno)
        call = plan.get("call", self._launcher.call)
        streams = ("stdout", "stderr", "result") if call >= 0 else ("stdout", "stderr")
        for worker in plan["workers"]:  # all of them before the first rank could inherit them
            for stream in streams:
                if stream in worker:
                    os.set_inheritable(worker[stream], False)
        refused = False
        for worker in plan["workers"]:
            rank = worker["rank"]
            ends: list[int] = [worker.get(stream) or self._outputs.add(rank, stream) for stream in streams]
            if not refused:
                environment = {**common, **_encoded(worker["environment"])}
                handed_on = [call, *ends[2:]] if call >= 0 else []
                if handed_on:
                    environment[b"HOROVOD_RUN_DESCRIPTORS"] = b"%d,%d" % tuple(handed_on)
                pid, errno = _spawn(command, environment, ends[0], ends[1], handed_on, plan["nofile"])
                if errno:
                    refused = True
                    self._launcher.say("refused", rank=rank, errno=errno)
                    self._end(signal.SIGTERM)
                else:
                    self._ranks[pid] = rank
                    self._launcher.say("started", rank=rank, pid=pid)
            for end in ends:
                os.close(end)
        self._outputs.allow(plan.get("window", 0))

    # Watching.

    def _listen(self) -> None:
        """Wait until something happens or is due, and take it in."""
        writing = not self._launcher.flush()
        if writing and not self._writing:
            self._poller.register(1, select.POLLOUT)
        elif self._writing and not writing:
            self._poller.unregister(1)
        self._writing = writing
        for descriptor, _ in self._poller.poll(self._timeout_ms()):
            if descriptor == self._wake:
                os.read(self._wake, 4096)
            elif descriptor == 0:
                self._launcher.read()
                if self._launcher.gone:
                    self._poller.unregister(0)
            elif descriptor in self._above:
                self._poller.unregister(descriptor)
                self._told_to_end = True
            elif descriptor != 1:  # that one is flushed before the next wait
                self._outputs.forward(descriptor)
        self._launcher.look()
        self._told_to_end = self._told_to_end or self._launcher.gone

    def _step(self) -> bool:
        """Look after everything that is due; whether nothing is left to do."""
        self._childless = self._reap()
        if self._childless:
            if not self._launcher.gone and not self._outputs.drained():
                return False
            self._launcher.say("finished", survivors=[])
            return True
        now = time.monotonic()
        if not self._ranks and not self._ending:
            if not self._linger_until:
                self._linger_until = now + LINGER_S
            elif now >= self._linger_until:
                self._launcher.say("left_behind", processes=len(_descendants()))
                self._end(signal.SIGTERM)
        if self._ending and now >= self._kill_at:
            if self._give_up_at and now >= self._give_up_at:
                self._launcher.say("finished", survivors=sorted(_descendants()))
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
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                exited.append((code, self._ranks.pop(pid)))
        # Of ranks found dead together, those killed by a signal are more likely the cause than the victims.
        for exit_code, rank in sorted(exited, key=lambda one: one[0] >= 0):
            self._launcher.say("exited", rank=rank, exit_code=exit_code)
        return childless

    def _timeout_ms(self) -> int | None:
        due = self._launcher.due_s()
        if self._childless:
            pass  # only what they printed is left
        elif self._ending:
            due = min(due, self._kill_at)
        elif not self._ranks and self._linger_until:
            due = min(due, self._linger_until)
        if due == float("inf"):
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

    def _obey(self) -> None:
        for request in self._launcher.requests():
            if "command" in request:
                self._start(request)
            elif "end" in request:
                self._end(request["end"])
            elif request.get("kill"):
                self._kill()
            elif "taken" in request:
                self._outputs.allow(request["taken"])


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
        _signal_all(signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.01)  # no event tells that the last descendant of many has died
    return 1


def _facts() -> dict[str, object]:
    """What the launcher wants to know about this host."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    spaces = [os.readlink("/proc/self/ns/" + kind) for kind in ("net", "pid")]
    return {
        "host": os.uname().nodename,
        "machine": " ".join([boot, *spaces]),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.executable,
        "connection": os.environ.get("SSH_CONNECTION", ""),
    }


def _watch_parent() -> int | None:
    """A descriptor that becomes readable when the launcher ends.

    Standard input says the same, unless the launcher's end of it was inherited by a forked child of its.
    """
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):  # a kernel before 5.3
        return None


def _spawn(
    command: list[bytes],
    environment: dict[bytes, bytes],
    stdout: int,
    stderr: int,
    handed_on: Sequence[int],
    nofile: int,
) -> tuple[int, int]:
    """Start one rank in a session of its own; its process id and 0, or any and the errno of `exec`.
    `handed_on`: descriptors that it keeps.
    """
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
            for descriptor in handed_on:
                os.set_inheritable(descriptor, True)
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


def main() -> None:
    remote = sys.argv[1:] == ["remote"]
    if os.getpgid(0) != os.getpid():
        if not remote:
            sys.exit("the keeper is started by horovodrun, in a session of its own")
        os.setsid()  # below a login shell
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of the ranks' children")
    launcher = _watch_parent()
    guard = os.getpid()
    keeper = os.fork()
    if keeper:
        sys.exit(_guard(keeper))
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # not inherited
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    kept = _Keeper(remote, [] if launcher is None else [launcher])
    if os.getppid() == guard:
        kept.run()


if __name__ == "__main__":
    main()
