"""The hosts of a job whose ranks are all known, until each has been reached, or cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.launch.contracts.errors import HostsUnreachable, JobInterrupted
from horovod.launch.contracts.events import HostFacts, HostLost, HostReached, HostRetried

__all__ = ["Reaching"]


class Reaching:
    """
    Args:
        names: of the hosts.
        away: how many of them are other machines.
        start_s: how long they may take.
    """

    def __init__(self, names: Sequence[str], away: int, start_s: float, now: float) -> None:
        self.names = tuple(names)
        self.deadline = now + start_s
        self._away = away
        self._start_s = start_s
        self._found: dict[str, HostFacts] = {}
        self._failed: dict[str, str] = {}
        self._last_words: dict[str, str] = {}

    @property
    def found(self) -> dict[str, HostFacts]:
        """Hosts that were reached, in the order of their names."""
        return {name: self._found[name] for name in self.names if name in self._found}

    @property
    def waiting(self) -> list[str]:
        """Hosts of which it is not known yet."""
        return [name for name in self.names if name not in self._found and name not in self._failed]

    def hear(self, event: HostReached | HostRetried | HostLost) -> str:
        """Note what has become of a host. Returns a sentence for people, or nothing."""
        match event:
            case HostReached(host, facts):
                self._found[host] = facts
                return ""
            case HostRetried(host, reason):
                self._last_words[host] = reason
                return f"host {host}: {reason}; trying again"
            case HostLost(host, _, reason):
                self._failed[host] = reason
                return f"host {host}: {reason}"

    def settled(self, now: float) -> bool:
        """True when it is known of all, or time is over."""
        return now >= self.deadline or not self.waiting

    def interrupted(self, signum: int) -> JobInterrupted | None:
        """The error where a signal comes meanwhile; None: no host is awaited."""
        if not self.waiting:
            return None
        awaited = ", ".join(sorted(self.waiting))
        return JobInterrupted(
            f"a signal ended the job while these hosts were awaited: {awaited}.", signum=signum
        )

    def failure(self) -> HostsUnreachable | None:
        """Why ranks cannot be started on all of them; who is still awaited is late."""
        late = {
            name: f"no answer within {self._start_s:g} s (--start-timeout)"
            + (f"; before that: {self._last_words[name]}" if name in self._last_words else "")
            for name in self.waiting
        }
        reasons = {**self._failed, **late}
        if not reasons:
            return None
        listed = "".join(f"\n    {name}: {reasons[name]}" for name in self.names if name in reasons)
        count = "one host" if len(reasons) == 1 else f"{len(reasons)} of {self._away} hosts"
        return HostsUnreachable(
            f"Nothing can be started on {count}:{listed}",
            reasons=reasons,
            exit_code=1 if self._failed else 124,
        )
