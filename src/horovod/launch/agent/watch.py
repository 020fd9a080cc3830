"""Starting the ranks of a host, watching them, and ending them."""

from __future__ import annotations

import os
import select
import signal
import time

from horovod.launch.agent.host import facts
from horovod.launch.agent.launcher import Launcher
from horovod.launch.agent.outputs import Outputs
from horovod.launch.agent.own_device import asked_for, give_own, ranks_too_many, visible_devices
from horovod.launch.agent.processes import descendants, signal_all, spawn
from horovod.launch.agent.requests import End, Kill, Plan, Refusal, Taken
from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S, MARK
from horovod.launch.agent.words import Words

LINGER_S = 0.5  # how long processes that ranks left behind may take to end by themselves
STARTER = b"HOROVOD_STARTER"  # how a rank finds the pipe for its words: see horovod.bootstrap.starter
KILL_INTERVAL_S = 0.1  # SIGKILL is repeated: a process may have been forked while we looked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.requests import Request, Worker


class Agent:
    def __init__(self, remote: bool, above: list[int]) -> None:
        """`above`: descriptors that become readable when a process above this one ends."""
        self._remote = remote
        self._launcher = Launcher(remote)
        self._poller = select.poll()
        self._outputs = Outputs(self._launcher, self._poller)
        self._words = Words(self._launcher, self._poller)
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
        # Another process than the launcher ends this one: then the exit status of the ranks says nothing
        # about them.
        self._orphaned = False
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
            self._launcher.say("hello", **facts())
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

    def _start(self, plan: Plan) -> None:
        self._planned = True
        common = plan.environment
        if self._remote:
            self._launcher.silence_s = plan.silence_s
            common = {**plan.defaults, **os.environb, **common}
            try:
                os.chdir(plan.directory)
            except OSError as error:
                self._launcher.say("no_directory", errno=error.errno)
        call = self._launcher.call if self._remote else plan.call
        if not self._remote:
            _keep_from_others(plan)
        streams = ("stdout", "stderr", "result") if call >= 0 else ("stdout", "stderr")
        devices = visible_devices(common) if asked_for(common) else None
        if devices is not None:
            too_many = ranks_too_many([each.environment for each in plan.workers], devices)
            if too_many:
                rank = plan.workers[0].rank
                self._launcher.say("few_devices", rank=rank, devices=len(devices), ranks=too_many)
        refused = False
        for worker in plan.workers:
            ends = [worker.streams.get(each) or self._outputs.add(worker.rank, each) for each in streams]
            if not refused:
                refused = not self._start_rank(plan, worker, common, call, ends, devices or [])
            for end in ends:
                os.close(end)
        self._outputs.allow(plan.window)

    def _start_rank(
        self,
        plan: Plan,
        worker: Worker,
        common: dict[bytes, bytes],
        call: int,
        ends: list[int],
        devices: list[str],
    ) -> bool:
        """Whether it runs. `ends` are those of its pipes; another one comes to them. `devices`: those of
        which it shall see one; none: it sees all.
        """
        environment = {**common, **worker.environment}
        give_own(environment, devices)
        handed_on = [call, *ends[2:]] if call >= 0 else []
        if handed_on:
            environment[b"HOROVOD_RUN_DESCRIPTORS"] = b"%d,%d" % tuple(handed_on)
        words = self._words.add(worker.rank)
        environment[STARTER] = b"%d,%d" % (words, os.fstat(words).st_ino)
        handed_on.append(words)
        ends.append(words)
        pid, errno = spawn(plan.command, environment, ends[0], ends[1], handed_on, plan.nofile)
        if errno:
            self._launcher.say("refused", rank=worker.rank, errno=errno)
            self._end(signal.SIGTERM)
            return False
        self._ranks[pid] = worker.rank
        self._launcher.say("started", rank=worker.rank, pid=pid)
        return True

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
                self._orphaned = self._told_to_end = True
            elif descriptor != 1 and not self._words.forward(descriptor):  # 1 is flushed before the next wait
                self._outputs.forward(descriptor)
        self._launcher.look()
        self._told_to_end = self._told_to_end or self._launcher.gone

    def _step(self) -> bool:
        """Look after everything that is due; whether nothing is left to do."""
        self._childless = self._reap()
        if self._childless:
            if not self._launcher.gone and not self._outputs.drained():
                return False
            self._finish([])
            return True
        now = time.monotonic()
        if not self._ranks and not self._ending:
            if not self._linger_until:
                self._linger_until = now + LINGER_S
            elif now >= self._linger_until:
                self._launcher.say("left_behind", processes=len(descendants()))
                self._end(signal.SIGTERM)
        if self._ending and now >= self._kill_at:
            if self._give_up_at and now >= self._give_up_at:
                self._finish(sorted(descendants()))
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
            self._words.last_of(rank)
            if not self._orphaned:
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
        signal_all(signum)

    def _kill(self) -> None:
        now = time.monotonic()
        self._ending = True
        self._kill_at = now + KILL_INTERVAL_S
        self._give_up_at = self._give_up_at or now + GIVE_UP_S
        signal_all(signal.SIGKILL)

    def _finish(self, survivors: list[int]) -> None:
        # A launcher that gets no such event knows that it has lost this process, not the ranks one by one.
        if not self._orphaned:
            self._launcher.say("finished", survivors=survivors)

    def _on_signal(self, *_: object) -> None:
        self._orphaned = self._told_to_end = True

    def _obey(self) -> None:
        try:
            for request in self._launcher.requests():
                self._follow(request)
        except Refusal as refusal:
            # Otherwise nobody would end ranks that a part of the request has started.
            self._launcher.say("cannot", why=str(refusal))
            self._told_to_end = True

    def _follow(self, request: Request) -> None:
        if isinstance(request, Plan):
            if self._planned:
                raise Refusal("a second plan")
            try:
                self._start(request)
            except OSError as error:  # nothing is left to start them with, or a descriptor is not open
                raise Refusal(f"the ranks cannot be started: {error.strerror}") from error
        elif isinstance(request, End):
            self._end(request.signum)
        elif isinstance(request, Kill):
            self._kill()
        elif isinstance(request, Taken):
            self._outputs.take(request.size_bytes)


def _keep_from_others(plan: Plan) -> None:
    """No rank inherits the pipes of another one."""
    for worker in plan.workers:
        for descriptor in worker.streams.values():
            os.set_inheritable(descriptor, False)
