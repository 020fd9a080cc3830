"""The driver of an elastic job: events of processes become news for its policy, and words for people."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence

from horovod.errors import LaunchError
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    Failed,
    FewDevices,
    Finished,
    Gone,
    HostLost,
    HostReached,
    LeftBehind,
    Refused,
    Rejoined,
    Said,
    Started,
    Stopped,
)
from horovod.launch.contracts.signals import signal_name
from horovod.launch.course.failures import command_not_started
from horovod.launch.driver.actions import (
    Action,
    AnnounceEnd,
    End,
    Finish,
    Forget,
    Kill,
    Over,
    Reach,
    Start,
    Widen,
)
from horovod.launch.driver.causes import heard, lost_by
from horovod.launch.driver.driver import Driver
from horovod.launch.elastic.policy import ElasticPolicy
from horovod.launch.elastic.rules import Phase
from horovod.launch.phrases import counted

__all__ = ["GrowingDriver"]


class GrowingDriver(Driver):
    """The policy is kept with the state of the job; what is known here besides, another driver is told again.

    Args:
        policy: decides.
        command: the program of the workers.
        machine: the name of this one, as `HostFacts` have it.

    Attributes:
        labels: of the workers that are not gone.
        agents: hosts where an agent of ours may be.
        cores: of each host that was reached.
        words: the last of each worker, if its script has ended with an error.
        ended_by_us: workers that were being ended before they ended.
        refused: why the command cannot be run.
        survivors: processes that even SIGKILL has not ended.
        over: how the job has ended.
    """

    def __init__(self, policy: ElasticPolicy, command: str, machine: str, now: float) -> None:
        self.policy = policy
        super().__init__(now)
        self._command = command
        self._machine = machine
        self.labels: dict[int, int] = {}
        self.agents: set[str] = set()
        self.cores: dict[str, int] = {}
        self.words: dict[int, str] = {}
        self.ended_by_us: set[int] = set()
        self.refused: LaunchError | None = None
        self.survivors: dict[int, None] = {}  # some are told more than once
        self.over: Over | None = None
        self._lost: dict[int, int | None] = {}

    @property
    def actions(self) -> list[Action]:
        return self.policy.actions

    @actions.setter
    def actions(self, actions: list[Action]) -> None:
        self.policy.actions = actions

    @property
    def running(self) -> Collection[int]:
        return list(self.labels)

    @property
    def ending(self) -> bool:
        return bool(self.signum)

    def describe(self, now: float) -> str:
        return self.policy.describe(now)

    def go_on(
        self, workers: Mapping[int, tuple[str, int]], agents: Sequence[str], now: float
    ) -> dict[str, list[int]]:
        """Take over from another driver, with its policy. ``workers``: host and label of each that is not
        gone.

        Returns:
            The hosts to be connected with again, and the workers that may be there.
        """
        self.hosts_of = {number: host for number, (host, _) in workers.items()}
        self.labels = {number: label for number, (_, label) in workers.items()}
        self.agents = set(self.policy.begin_again(agents, now))
        return {
            name: [number for number, host in self.hosts_of.items() if host == name]
            for name in sorted(self.agents)
        }

    def note(self, actions: Sequence[Action]) -> None:
        """These are being carried out."""
        for action in actions:
            match action:
                case Start():
                    self.hosts_of[action.worker] = action.host
                    self.labels[action.worker] = action.place[0]
                case Reach(host):
                    self.agents.add(host)
                case Over():
                    self.over = action

    def hear(self, event: Event, now: float) -> None:
        policy = self.policy
        match event:
            case HostReached(host, facts):
                self.cores[host] = facts.cores
                if facts.machine != self._machine:
                    self.actions.append(Widen())
                self.agents.add(host)
                policy.reached(host, now)
            case HostLost(host, _, reason):
                self.agents.discard(host)
                for number in [each for each in self.labels if self.hosts_of[each] == host]:
                    del self.labels[number]
                policy.host_lost(host, reason, now)
            case Started(number, pid):
                self.narrate(f"worker {number} runs as process {pid} on {self.hosts_of[number]}")
            case Said(number, line):
                self._said(number, line, now)
            case Stopped(number):
                policy.stopped(number, now)
            case Continued(number):
                policy.continued(number, now)
            case Refused(number, _):
                # A command that cannot be run on one host cannot be run on the others, as a rule.
                if policy.phase is Phase.FIRST and self.refused is None:
                    self.refused = command_not_started(event, self._command, self.hosts_of[number])
                    policy.stop(str(self.refused), now)
                policy.exited(number, 127, now)
            case Exited(number, exit_code, told):
                if told:
                    self.ended_by_us.add(number)
                said, lost = self.words.get(number, ""), self._lost.get(number)
                policy.exited(number, exit_code, now, said, lost)
                self.actions.append(Forget(number))
            case Rejoined(_, missing):
                for number in missing:
                    self.labels.pop(number, None)
                policy.never_began(missing, now)
            case Failed(error):
                policy.stop(str(error), now)
            case Gone(number, survivors):
                self.labels.pop(number, None)
                self.survivors.update(dict.fromkeys(survivors))
                policy.gone(number, now)
            case FewDevices(number, devices, ranks):
                few = f"{counted(devices, 'device')} for {counted(ranks, 'rank')}"
                self.tell(f"host {self.hosts_of[number]} has {few}")
            case LeftBehind(processes):
                self.tell(f"ending {counted(processes, 'process', 'processes')} that workers left behind")
            case Finished(survivors):
                self.survivors.update(dict.fromkeys(survivors))
                self.finished = True
            case _:
                pass

    def interrupt(self, signum: int, now: float) -> None:
        name = signal_name(signum)
        if self.signum:
            self.actions.append(Kill())
            self.tell(f"second signal ({name}): killing what still runs")
            return
        self.signum = signum
        if signum == signal.SIGINT:
            self.tell_of_interrupt(len(self.labels))
        self.actions += [AnnounceEnd(tuple(self.hosts_of)), Finish(signum)]
        self.policy.stop(f"{name} ended the job.", now)
        # A SIGTERM right behind it would end what a rank does about it, as an `except KeyboardInterrupt`.
        self.actions = [action for action in self.actions if not isinstance(action, End)]

    def settle(self, now: float) -> None:
        self.policy.tick(now)

    def due(self, now: float) -> float:
        return self.policy.due()

    def _said(self, number: int, line: str, now: float) -> None:
        word = heard(line)
        if word is None:
            return
        self._lost[number] = lost_by(word)  # one of a former world does not count
        if word.text:
            self.words[number] = word.text
        if word.final:
            self.policy.failing(number, word.text, self._lost[number], now)
