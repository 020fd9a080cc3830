"""The cost of a failure in an elastic job: the slot or the host is left out, and a silent member is ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from horovod.launch.driver.actions import Doubt, Spoil
from horovod.launch.driver.causes import describe_exit
from horovod.launch.elastic.workers import END_S, SPEAK_S, Worker, Workers, WorkerState
from horovod.launch.phrases import counted

__all__ = ["Failures"]


class Failures:
    """
    Args:
        workers: of the job.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._hosts = workers.hosts
        self._lost_at: dict[int, float] = {}  # when they are ended
        self._doubted: set[str] = set()
        self._costs_hosts = False  # a failure in this world has cost a whole host

    def ended(self, worker: Worker, why: str, now: float) -> None:
        """A worker has ended though nobody told it to. ``why``: what its script said last."""
        code = worker.exit_code
        how = "was lost with its host" if code is None else describe_exit(code)
        if worker.exiting:
            how = "gives no sign of life" if worker.killed else "has failed"
        how += f": its script {why}" if why and code != 0 else ""
        workers = self._workers
        if worker.never_came and not workers.rules.at_once:
            how += " and has never called hvd.init()"
        member = worker.number in workers.world
        text = f"rank {worker.rank} on {worker.host} {how}"
        if not member:
            text = f"a worker in slot {worker.index} of {worker.host} {how} before it was in a world"
        if code != 0:
            workers.last_failure = text
        if not member:
            workers.log(
                "newcomer_left",
                text,
                worker=worker.number, host=worker.host, exit_code=code,
            )  # fmt: skip
            # Members beside it show that the host as a whole is not to blame.
            beside = any(each.host == worker.host and each.alive for each in workers.members())
            self.leave_out(worker, now, by_slot=True if beside or code == 0 else None)
            return
        workers.log(
            "ended" if code == 0 else "left", text, rank=worker.rank, host=worker.host, exit_code=code
        )
        cause = f"Rank {worker.rank} on host {worker.host} {how}."
        workers.actions.append(Spoil(workers.round, cause, worker.rank, worker.host))

    def leave_out(self, failure: Worker, now: float, by_slot: bool | None = None) -> None:
        """A worker has failed: do not use its host, or its slot, for a while or for ever."""
        host, index = failure.host, failure.index
        if by_slot is None:
            rule = self._workers.rules.by_slot
            # Ranks that fail on every host of a world have a cause that no host can be blamed for.
            by_slot = not (self._costs_hosts or self._goes_on_without(host)) if rule is None else rule
        if self._hosts.is_drained(host, index):
            return  # it was announced to go
        if by_slot:
            until = self._hosts.leave_out(host, index, now)
            what = f"slot {index} of {host}"
        else:
            if self._hosts.is_blacklisted(host):
                return
            self._costs_hosts = True
            until = self._hosts.blacklist(host, now)
            what = f"host {host}"
            others = [each for each in self._workers.living() if each.host == host and not each.told_to_end]
            self._workers.end(others, "its host is left out")
        span = "from now on" if until == math.inf else f"for {until - now:.1f} s"
        self._workers.log(
            "left_out", f"{what} is left out {span}", host=host, slot=index if by_slot else None,
            back_s=None if until == math.inf else round(until - now, 3),
        )  # fmt: skip

    def _goes_on_without(self, host: str) -> bool:
        """Return whether a worker of another host could give the next world its state. A host that is only
        listed, or whose workers still load, cannot.
        """
        workers = self._workers
        return any(
            each.host != host and workers.has_state(each) and workers.usable(each) and not each.stopped
            for each in workers.living()
        )

    def blame(self, waiting: Sequence[Worker], spoiled: int, now: float) -> None:
        """``spoiled`` worlds in a row could not be formed though nobody has ended: leave out the host that
        most of those who wait name.
        """
        world = self._workers.world
        votes = Counter(
            world[member.said.because]
            for member in waiting
            if member.said.because is not None
            and member.said.because < len(world)
            and world[member.said.because] != member.number
        )
        if not votes:
            return
        most = max(votes.values())
        number = max(number for number, count in votes.items() if count == most)
        worker = self._workers[number]
        self._workers.log(
            "blamed",
            f"{counted(spoiled, 'world')} in a row could not be formed; {counted(most, 'rank')} of "
            f"{len(waiting)} could not connect with rank {worker.rank} on {worker.host}",
            rank=worker.rank, host=worker.host,
        )  # fmt: skip
        self.leave_out(worker, now)
        if worker.alive and not worker.told_to_end:
            self._workers.end([worker], "others cannot connect with it")

    # -- members whose processes take long to end -----------------------------------------------------------

    def exiting(self) -> list[Worker]:
        """Members whose script has failed, if the others, who want another world, wait for nothing but the
        end of their processes.
        """
        members = self._workers.members()
        failed = [member for member in members if member.alive and member.failed_at is not None]
        others = [member for member in members if member not in failed]
        wanted = any(other.state is WorkerState.WAITING for other in others)
        wanted = wanted and not any(
            other.state is WorkerState.ENDED and other.exit_code == 0 for other in others
        )
        settled = all(other.reported and not other.stopped for other in others)
        return failed if wanted and settled else []

    def exiting_due(self) -> float:
        """When these are waited for no longer."""
        times = [member.failed_at for member in self.exiting() if member.failed_at is not None]
        return max(times, default=math.inf) + self._workers.rules.exit_s

    # -- members that are silent ----------------------------------------------------------------------------

    def look_for_lost(self, now: float) -> None:
        """A member that others have lost and that is silent is ended: else it is awaited for ever."""
        members = self._workers.members()
        for member in members:
            self._note_lost(members, member.lost, now + self._workers.rules.lost_s)
            silent = self._note_lost(members, member.lost_silent, now + SPEAK_S)
            if silent is not None and silent.host not in self._doubted:
                self._doubted.add(silent.host)
                self._workers.actions.append(Doubt(silent.host))
        for number, at in list(self._lost_at.items()):
            worker = self._workers[number]
            if worker.state is not WorkerState.PLACED:
                del self._lost_at[number]
            elif now >= at:
                self._lost_at[number] = math.inf
                self._end_lost(worker, now)

    def _note_lost(self, members: Sequence[Worker], lost: int | None, end_at: float) -> Worker | None:
        """This rank is lost, and is ended then, if it is at work as far as the driver knows; returns it."""
        if lost is None or lost >= len(members) or members[lost].state is not WorkerState.PLACED:
            return None
        member = members[lost]
        if member.killed:
            self._lost_at[member.number] = math.inf
        elif member.failed_at is not None:  # it has spoken; its exit handlers may take some time
            self._lost_at[member.number] = member.failed_at + END_S
        else:
            self._lost_at[member.number] = min(self._lost_at.get(member.number, math.inf), end_at)
        return member

    def _end_lost(self, worker: Worker, now: float) -> None:
        who = f"rank {worker.rank} on {worker.host}"
        why = f"others have lost it, and it has not been heard of for {self._workers.rules.lost_s:g} s"
        if worker.failed_at is not None:
            why = f"its script has failed, and its process has not ended for {END_S:g} s"
        self._workers.kill(worker, f"{who} is ended: {why}", now)

    def formed(self) -> None:
        """There is another world: nobody of it is lost."""
        self._lost_at = {}
        self._doubted.clear()
        self._costs_hosts = False

    def due(self) -> float:
        """When `look_for_lost` has something to do."""
        return min(self._lost_at.values(), default=math.inf)
