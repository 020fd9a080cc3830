"""Starting the ranks of a host, watching them, and ending them."""

from __future__ import annotations

import os
import select
import signal
import time

from horovod.launch.agent.host import asked_for, facts, give_own, ranks_too_many, visible_devices
from horovod.launch.agent.launcher import Launcher
from horovod.launch.agent.processes import EndingProcesses, descendants, pass_on, spawn, survive
from horovod.launch.agent.requests import (
    Attach,
    Close,
    EndRanks,
    Input,
    KillRanks,
    PassOn,
    Plan,
    Refusal,
    StartRanks,
    Taken,
)
from horovod.launch.agent.streams import Feed, Outputs
from horovod.launch.agent.terms import LINGER_S, MARK, MOST_STOPS, STARTER
from horovod.launch.agent.words import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.process_trees import ProcessTrees
    from horovod.launch.agent.reconnect_socket import ReconnectSocket
    from horovod.launch.agent.requests import PlannedRank, Request

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NEWS = os.WNOHANG | os.WUNTRACED | os.WCONTINUED  # of children


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
        self._plan: Plan | None = None
        self._common: dict[bytes, bytes] = {}  # environment of all ranks
        self._devices: list[str] | None = None  # None: ranks see all there are
        self._open = False  # further ranks may come
        self._trees: ProcessTrees | None = None  # of an open plan
        self._reconnect: ReconnectSocket | None = None  # where another launcher may come
        self._wait_until = 0.0  # for it; 0: one is there
        self._childless = False
        self._feed = Feed(self._launcher, self._poller)
        self._standing: set[int] = set()  # ranks that were told to be stopped
        self._stops: dict[int, int] = {}  # how often
        self._ending = EndingProcesses()  # of everything
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
        for signum in _ENDING:
            signal.signal(signum, self._on_signal)
        survive()
        for descriptor in (0, self._wake, *above):
            self._poller.register(descriptor, select.POLLIN)

    def run(self) -> None:
        if self._remote:
            self._launcher.send(MARK)
            self._launcher.say("hello", **facts())
        while not self._told_to_end and self._plan is None:
            self._listen()
            self._obey()
        while self._plan is not None and not self._step():
            self._listen()
            self._obey()
            if self._told_to_end:
                self._end(signal.SIGTERM)
        self._launcher.close()

    # Starting.

    def _begin(self, plan: Plan) -> None:
        self._plan = plan
        self._common = plan.environment
        if self._remote:
            self._launcher.silence_s = plan.silence_s
            inherited = os.environb if plan.inherit else {}
            self._common = {**plan.defaults, **inherited, **plan.environment}
            try:
                os.chdir(plan.directory)
            except OSError as error:
                self._launcher.say("no_directory", errno=error.errno)
        if asked_for(self._common):
            self._devices = visible_devices(self._common)
        if plan.open:
            from horovod.launch.agent.process_trees import ProcessTrees  # only elastic jobs pay for it

            self._open = True
            self._trees = self._words.trees = ProcessTrees(self._launcher, self._outputs)
        if plan.reconnect:
            from horovod.launch.agent.reconnect_socket import ReconnectSocket

            self._reconnect = ReconnectSocket(plan.reconnect, plan.patience_s)
            self._poller.register(self._reconnect.fileno(), select.POLLIN)
            self._launcher.remember()
            self._outputs.remember()
        if not self._remote:
            _keep_from_others(plan)
        self._start(plan, plan.workers)
        self._outputs.allow(plan.window)

    def _start(self, plan: Plan, workers: list[PlannedRank]) -> None:
        call = self._launcher.call if self._remote else plan.call
        answers = call >= 0 and not plan.call_is_input
        streams = ("stdout", "stderr", "result") if answers else ("stdout", "stderr")
        if self._devices is not None:
            environments = [each.environment for each in workers]
            too_many = ranks_too_many(environments, self._devices, one_by_one=plan.open)
            if too_many:
                rank = workers[0].rank
                self._launcher.say("few_devices", rank=rank, devices=len(self._devices), ranks=too_many)
        refused = False
        for worker in workers:
            ends: list[int] = []
            try:
                for each in streams:
                    ends.append(worker.streams.get(each) or self._outputs.add(worker.rank, each))
                if not refused:
                    refused = not self._start_rank(plan, worker, call, ends)
            except OSError as error:  # nothing is left to start it with
                if not plan.open:
                    raise
                refused = not self._refuse(worker.rank, error.errno or 0)
            finally:
                for end in ends:
                    os.close(end)

    def _start_more(self, request: StartRanks) -> None:
        if self._plan is None or self._trees is None or not self._open:
            raise Refusal("further ranks, of a plan that is not open")
        if any(worker.rank in self._trees for worker in request.workers):
            raise Refusal("start: a rank that is there already")
        self._start(self._plan, request.workers)

    def _start_rank(self, plan: Plan, worker: PlannedRank, call: int, ends: list[int]) -> bool:
        """Start a rank. Returns False if no further one may be started. `ends`: descriptors of its pipes, to
        which more are added.
        """
        environment = {**self._common, **worker.environment}
        give_own(environment, self._devices or [])
        stdin = self._feed.begin() if worker.fed else worker.stdin
        handed_on = [call, *ends[2:3]] if call >= 0 and not plan.call_is_input else []
        if handed_on:
            environment[b"HOROVOD_RUN_DESCRIPTORS"] = b"%d,%d" % tuple(handed_on)
        ends += [stdin] if stdin >= 0 else []
        words = self._words.add(worker.rank)
        environment[STARTER] = b"%d,%d" % (words, os.fstat(words).st_ino)
        handed_on.append(words)
        ends.append(words)
        source = f"/proc/self/fd/{call}" if plan.call_is_input and call >= 0 else os.devnull
        pid, errno = spawn(plan.command, environment, stdin, source, ends[0], ends[1], handed_on, plan.nofile)
        if errno:
            return self._refuse(worker.rank, errno)
        self._ranks[pid] = worker.rank
        if self._trees is not None:
            self._trees.begin(worker.rank, pid, STARTER + b"=" + environment[STARTER])
        self._launcher.say("started", rank=worker.rank, pid=pid)
        return True

    def _refuse(self, rank: int, errno: int) -> bool:
        """This rank cannot be started; whether others may."""
        self._launcher.say("refused", rank=rank, errno=errno)
        if self._trees is None:
            self._end(signal.SIGTERM)
            return False
        self._words.last_of(rank)
        self._trees.begin(rank, 0, b"")
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
                if self._launcher.ended:
                    self._poller.unregister(0)
            elif descriptor in self._above:
                self._poller.unregister(descriptor)
                self._above.discard(descriptor)
                if self._reconnect is None:
                    self._words.close()
                    self._orphaned = self._told_to_end = True
                else:
                    self._launcher.gone = True
            elif descriptor == self._feed.fileno():
                self._feed.flush()
            elif self._reconnect is not None and descriptor == self._reconnect.fileno():
                self._let_in(self._reconnect)
            elif descriptor != 1 and not self._words.forward(descriptor):  # 1 is flushed before the next wait
                self._outputs.forward(descriptor)
        self._launcher.look()
        if self._launcher.gone and self._launcher.come_back():
            self._wait_until = 0.0
            self._outputs.come_back()
        if self._launcher.gone and not self._waits():
            self._words.close()
            self._told_to_end = True

    def _waits(self) -> bool:
        """The launcher is gone; whether another one may come."""
        if self._reconnect is None or not self._open:
            return False
        if not self._wait_until:
            self._wait_until = time.monotonic() + self._reconnect.patience_s
            self._outputs.keep()
        return time.monotonic() < self._wait_until

    def _let_in(self, reconnect: ReconnectSocket) -> None:
        """Another launcher has come: it is the one from now on."""
        visitor = reconnect.let_in()
        if visitor is None:
            return
        assert self._plan is not None
        window = self._plan.window
        with visitor:
            self._launcher.change(visitor.fileno(), lambda: self._outputs.change(window))
        self._poller.register(0, select.POLLIN)
        for descriptor in self._above:  # above the launcher before
            self._poller.unregister(descriptor)
        self._above.clear()
        self._wait_until = 0.0

    def _step(self) -> bool:
        """Look after everything that is due; whether nothing is left to do."""
        self._childless = self._reap()
        if self._childless and not self._open:
            if not self._launcher.gone and not self._outputs.drained():
                return False
            self._finish([])
            return True
        now = time.monotonic()
        if self._ending.begun:
            if self._ending.given_up(now):
                self._finish(sorted(descendants()))
                return True
            if now >= self._ending.due:
                self._kill()
        elif self._trees is not None and (self._open or self._trees):
            self._trees.look(childless=self._childless)
        elif not self._ranks:
            if not self._linger_until:
                self._linger_until = now + LINGER_S
            elif now >= self._linger_until:
                self._launcher.say("left_behind", processes=len(descendants()))
                self._end(signal.SIGTERM)
        return False

    def _reap(self) -> bool:
        """Collect the dead; whether no child is left, and so, as we adopt orphans, no descendant."""
        exited = []
        childless = False
        while True:
            try:
                pid, status = os.waitpid(-1, _NEWS)
            except ChildProcessError:
                childless = True
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self._ranks:
                    self._stands(self._ranks[pid], os.WIFSTOPPED(status))
            elif pid in self._ranks:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                exited.append((code, self._ranks.pop(pid)))
            elif self._trees is not None:
                self._trees.orphans_ended()
        if exited:
            self._words.catch_up()
        # Of ranks found dead together, those killed by a signal are more likely the cause than the victims.
        for exit_code, rank in sorted(exited, key=lambda one: one[0] >= 0):
            self._words.last_of(rank)
            told = {}
            if self._trees is not None:
                if rank not in self._trees:  # it was given up before
                    continue
                self._outputs.empty(rank)
                told = {"told": self._trees.ended(rank) or self._ending.begun}
            if not self._orphaned:
                self._launcher.say("exited", rank=rank, exit_code=exit_code, **told)
        return childless

    def _stands(self, rank: int, stopped: bool) -> None:
        """The process that was started for this rank was stopped by a signal, or goes on."""
        if self._trees is not None:
            self._trees.stands(rank, stopped)
            return
        stops = self._stops.get(rank, 0)
        if stopped == (rank in self._standing) or (stopped and stops == MOST_STOPS):
            return
        if stopped:
            self._stops[rank] = stops + 1
            self._standing.add(rank)
        else:
            self._standing.discard(rank)
        self._launcher.say("stopped" if stopped else "continued", rank=rank)

    def _timeout_ms(self) -> int | None:
        due = self._launcher.due_s()
        if self._wait_until and not self._told_to_end:
            due = min(due, self._wait_until)
        if self._childless and not self._open:
            pass  # only what they printed is left
        elif self._ending.begun:
            due = min(due, self._ending.due)
        elif self._trees is not None and (self._open or self._trees):
            due = min(due, self._trees.due())
        elif not self._ranks and self._linger_until:
            due = min(due, self._linger_until)
        if due == float("inf"):
            return None
        return max(0, int((due - time.monotonic()) * 1000) + 1)

    # Ending.

    def _end(self, signum: int) -> None:
        self._open = False
        if not self._ending.begun:
            self._ending.begin(descendants().values(), signum)

    def _kill(self) -> None:
        self._open = False
        self._ending.kill(descendants().values())

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
            if self._plan is not None:
                raise Refusal("a second plan")
            try:
                self._begin(request)
            except OSError as error:  # nothing is left to start them with, or a descriptor is not open
                raise Refusal(f"the ranks cannot be started: {error.strerror}") from error
        elif isinstance(request, StartRanks):
            self._start_more(request)
        elif isinstance(request, Attach):
            self._attach(request)
        elif isinstance(request, Close):
            self._open = False
        elif isinstance(request, EndRanks):
            if request.ranks is None:
                self._end(request.signum)
            elif self._trees is not None:
                self._trees.end(request.ranks, request.signum)
        elif isinstance(request, KillRanks):
            self._kill()
        elif isinstance(request, Input):
            self._feed.put(request.data)
        elif isinstance(request, PassOn):
            self._pass_on(request.signum)
        elif isinstance(request, Taken):
            self._outputs.take(request.size_bytes)

    def _pass_on(self, signum: int) -> None:
        sent, others = ([], []) if self._ending.begun else pass_on(self._ranks, descendants(), signum)
        self._launcher.say("passed_on", signum=signum, ranks=sent, others=others)

    def _attach(self, request: Attach) -> None:
        if self._plan is not None:
            raise Refusal("to attach another agent, after the plan")
        from horovod.launch.agent.reconnect_socket import relay

        for signum in _ENDING:
            signal.signal(signum, signal.SIG_DFL)
        first = self._launcher.rest()
        if relay(request.socket, first):
            os._exit(0)  # all was said by the other one
        for signum in _ENDING:
            signal.signal(signum, self._on_signal)
        self._launcher.put_back(first)
        self._launcher.say("nobody")


def _keep_from_others(plan: Plan) -> None:
    """No rank inherits the pipes of another one."""
    for worker in plan.workers:
        for descriptor in (*worker.streams.values(), worker.stdin):
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)
