"""Search for the rank that failed first. The order in which processes end does not tell. A rank that fails
because of another one may end sooner; and the first may not have ended at all, because it is stopped, or its
exit handlers or threads take long.

The first cause is, in this order: a rank that a signal ended; one that failed by itself, or has not ended,
and that others name as the reason of their failure; one that failed by itself; one that ended well, although
others needed it; one that failed because of another rank. Of equals, the one that was heard first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from horovod.bootstrap.place.starter import Word, parse
from horovod.launch.contracts.signals import signal_name
from horovod.runtime.ending import harmless

__all__ = [
    "Causes",
    "RankOutcome",
    "Kind",
    "blamed",
    "describe_exit",
    "first_cause",
    "heard",
    "kind_of",
    "lost_by",
]

_MOST_CHARACTERS = 1000
_REORDERED_S = 1.0  # news of hosts may be so late
_NOTICEABLE_S = 0.5  # who waits longer is told why
_LEAVING_S = 1.0  # a rank that has just left its world may so long end by itself, and say why
_SILENT = re.compile(r"\brank (\d+) on host \S+ is lost: ")
_NO_WORDS: Mapping[int, Word] = MappingProxyType({})


@dataclass(frozen=True)
class RankOutcome:
    """The end of a rank. `exit_code` is negative for a signal, None if the rank has failed and not ended;
    `text` and `because` are its own words, or `text` is that of the rank `told_by`. `stopped`: it is stopped,
    and others have lost it and have ended well nevertheless.
    """

    rank: int
    exit_code: int | None
    text: str = ""
    because: int | None = None
    told_by: int | None = None
    stopped: bool = False


class Kind(IntEnum):
    """The evidence that a rank was the first, strongest first."""

    KILLED = 0
    FAILED_AND_NAMED = 1
    FAILED = 2
    ENDED_AND_NAMED = 3
    LET_DOWN = 4


def heard(line: str) -> Word | None:
    """Parse what a rank said, safe to be shown; None if it is malformed."""
    try:
        word = parse(line)
    except ValueError:
        return None
    # It becomes a part of sentences, which have full stops of their own.
    return replace(word, text=harmless(word.text)[:_MOST_CHARACTERS].rstrip(" ."))


def lost_by(word: Word) -> int | None:
    """The rank that fell silent, as the word of another one says. One that has left the world by itself may
    be blamed, and is at work.
    """
    found = _SILENT.search(word.text)
    return word.because if found and int(found[1]) == word.because else None


def blamed(ends: Collection[RankOutcome]) -> set[int]:
    """The ranks that others say they failed because of."""
    return {end.because for end in ends if end.exit_code != 0 and end.because is not None}


def kind_of(end: RankOutcome, named: Collection[int]) -> Kind | None:
    """Evidence that `end` is the first cause; None if it is no cause. `named`: see `blamed`."""
    if end.exit_code == 0:
        return Kind.ENDED_AND_NAMED if end.rank in named else None
    if end.because is not None:
        return Kind.LET_DOWN
    if end.exit_code is not None and end.exit_code < 0:
        return Kind.KILLED
    return Kind.FAILED_AND_NAMED if end.rank in named else Kind.FAILED


def first_cause(ends: Sequence[RankOutcome], words: Mapping[int, Word] = _NO_WORDS) -> RankOutcome | None:
    """The end of the rank that failed first, of `ends` in the order in which they were heard; None: none
    failed. `words`: the last one of each rank that has not ended.
    """
    known = [*ends, *_not_ended(ends, words)]
    named = blamed(known)
    found = [(kind, number) for number, end in enumerate(known) if (kind := kind_of(end, named)) is not None]
    return known[min(found)[1]] if found else None


def _not_ended(ends: Sequence[RankOutcome], words: Mapping[int, Word]) -> list[RankOutcome]:
    """The ranks that others blame and that have not ended, as far as the blame leads from one to the
    next.
    """
    found: list[RankOutcome] = []
    witnesses = [end for end in ends if end.exit_code != 0 and end.because is not None]
    for witness in witnesses:  # grows
        rank = witness.because
        if rank is None or rank not in words or any(end.rank == rank for end in found):
            continue
        word = words[rank]
        if word.text:
            end = RankOutcome(rank, None, word.text, word.because)
        else:
            end = RankOutcome(rank, None, witness.text, told_by=witness.rank)
        found.append(end)
        witnesses.append(end)
    return found


class Causes:
    """Search for the first cause while a job runs: when a rank has failed, the others get some time. They
    learn of the failure from each other, run their handlers and end by themselves, and their words tell which
    rank was the first.

    Args:
        patience_s: how long ranks that a world needs may take to end by themselves when one has failed.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.open = False
        self.began_at = 0.0
        self.involved: frozenset[int] = frozenset()
        """The ranks that had not ended before it."""
        self._told = False
        self._ends: list[RankOutcome] = []
        self._words: dict[int, Word] = {}
        self._leaving_until: dict[int, float] = {}
        self._ended_at = 0.0
        self._stopped_at: dict[int, float] = {}

    def stand(self, rank: int, now: float) -> None:
        """A signal has stopped the process of this rank."""
        self._stopped_at[rank] = now

    def go_on(self, rank: int) -> None:
        self._stopped_at.pop(rank, None)

    def hear(self, rank: int, line: str, now: float) -> None:
        word = heard(line)
        if word is not None:
            if self._word_of(rank).in_world and not word.in_world:
                self._leaving_until[rank] = now + _LEAVING_S
            self._words[rank] = word

    def _word_of(self, rank: int) -> Word:
        return self._words.get(rank, Word(False))

    def end(self, rank: int, exit_code: int, now: float, *, counts: bool) -> RankOutcome:
        """This rank has ended. `counts`: it may be the cause."""
        word = self._word_of(rank)
        end = RankOutcome(
            rank, exit_code, word.text if exit_code else "", word.because if exit_code else None
        )
        if counts:
            self._ends.append(end)
        self._ended_at = now
        return end

    def begin(self, not_ended: Collection[int], now: float) -> None:
        if not self.open:
            self.open = True
            self.began_at = now
            self.involved = frozenset(not_ended)

    def over(self, running: Collection[int], now: float) -> bool:
        """Nobody is left who may notice it, or has just done so, or is said to have failed; or all have had
        the time.
        """
        named = blamed(self._ends)
        needed = [
            rank
            for rank in running
            if rank in named or self._word_of(rank).in_world or now < self._leaving_until.get(rank, now)
        ]
        return not needed or now >= self.began_at + self.patience_s

    def due(self, not_ended: Collection[int], now: float) -> list[float]:
        """When to look again."""
        if not self.open:
            return [self.stopped_until(not_ended)] if self.stopped(not_ended) is not None else []
        told = [] if self._told else [self.began_at + _NOTICEABLE_S]
        leaving = [until for until in self._leaving_until.values() if until > now]
        return [*told, *leaving, self.began_at + self.patience_s]

    def due_to_tell(self, now: float) -> bool:
        """True once, when it is time to say why we wait."""
        due = not self._told and now >= self.began_at + _NOTICEABLE_S
        self._told = self._told or due
        return due

    def stopped(self, not_ended: Collection[int]) -> RankOutcome | None:
        """If all that have not ended stand still in a world, and others have lost them there and have ended:
        the first of them. Nothing else would end them.
        """
        if not not_ended or len(self._stopped_at) < len(not_ended):
            return None  # asked at every event of every job
        if not all(rank in self._stopped_at and self._word_of(rank).in_world for rank in not_ended):
            return None
        tellers = {lost_by(self._word_of(end.rank)): end.rank for end in reversed(self._ends)}
        if not tellers.keys() >= set(not_ended):
            return None
        rank = min(not_ended)
        return RankOutcome(rank, None, self._word_of(tellers[rank]).text, told_by=tellers[rank], stopped=True)

    def stopped_until(self, not_ended: Collection[int]) -> float:
        """Time until which to wait for `stopped` ranks, counted from the last news of them and the others."""
        return max(self._ended_at, *(self._stopped_at[rank] for rank in not_ended)) + self.patience_s

    def first(self, not_ended: Collection[int]) -> RankOutcome | None:
        return first_cause(self._ends, {rank: self._word_of(rank) for rank in not_ended})

    def corrects(self, known: RankOutcome, end: RankOutcome, ended_at: float, now: float) -> bool:
        """True if a rank failed before the `known` first one, for which the others are being ended since
        ``ended_at``. News of different hosts come in any order: a rank that lost its peer may be heard before
        the peer's end. Nobody of us sends SIGKILL so early. Also true if it is the known one, and has ended
        after all.
        """
        if end.exit_code is None:
            return False
        early = now < ended_at + _REORDERED_S
        killed = early and end.exit_code == -signal.SIGKILL
        if known.exit_code is None and known.rank == end.rank:
            ours = end.exit_code in (-signal.SIGTERM, -signal.SIGKILL)
            return killed or (end.exit_code != 0 and not ours and end.because is None)
        if known.exit_code is not None and known.exit_code <= 0:
            return False
        failed_by_itself = early and end.exit_code > 0 and end.because is None
        return killed or (known.because == end.rank and failed_by_itself)


def describe_exit(exit_code: int | None) -> str:
    """Say what happened to a process, as the end of a sentence; `exit_code` is negative for a signal, None if
    it has failed without ending.
    """
    if exit_code is None:
        return "failed and had not ended"
    if exit_code < 0:
        return f"was killed by {signal_name(-exit_code)} (status {128 - exit_code})"
    return f"exited with status {exit_code}"
