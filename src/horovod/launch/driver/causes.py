"""Search for the rank that failed first. The order in which processes end does not tell. A rank that fails
because of another one may end sooner; and the first may not have ended at all, because it is stopped, or its
exit handlers or threads take long.

The first cause is, in this order: a rank that a signal ended; one that failed by itself, or has not ended,
and that others name as the reason of their failure; one that failed by itself; one that ended well, although
others needed it; one that failed because of another rank. Of equals, the one that was heard first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from horovod.bootstrap.place.starter import Word, parse
from horovod.runtime.ending import harmless

__all__ = ["End", "Kind", "blamed", "first_cause", "heard", "kind_of", "lost_by"]

_MOST_CHARACTERS = 1000
_SILENT = re.compile(r"\brank (\d+) on host \S+ is lost: ")
_NO_WORDS: Mapping[int, Word] = MappingProxyType({})


@dataclass(frozen=True)
class End:
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


def blamed(ends: Collection[End]) -> set[int]:
    """The ranks that others say they failed because of."""
    return {end.because for end in ends if end.exit_code != 0 and end.because is not None}


def kind_of(end: End, named: Collection[int]) -> Kind | None:
    """Evidence that `end` is the first cause; None if it is no cause. `named`: see `blamed`."""
    if end.exit_code == 0:
        return Kind.ENDED_AND_NAMED if end.rank in named else None
    if end.because is not None:
        return Kind.LET_DOWN
    if end.exit_code is not None and end.exit_code < 0:
        return Kind.KILLED
    return Kind.FAILED_AND_NAMED if end.rank in named else Kind.FAILED


def first_cause(ends: Sequence[End], words: Mapping[int, Word] = _NO_WORDS) -> End | None:
    """The end of the rank that failed first, of `ends` in the order in which they were heard; None: none
    failed. `words`: the last one of each rank that has not ended.
    """
    known = [*ends, *_not_ended(ends, words)]
    named = blamed(known)
    found = [(kind, number) for number, end in enumerate(known) if (kind := kind_of(end, named)) is not None]
    return known[min(found)[1]] if found else None


def _not_ended(ends: Sequence[End], words: Mapping[int, Word]) -> list[End]:
    """The ranks that others blame and that have not ended, as far as the blame leads from one to the
    next.
    """
    found: list[End] = []
    witnesses = [end for end in ends if end.exit_code != 0 and end.because is not None]
    for witness in witnesses:  # grows
        rank = witness.because
        if rank is None or rank not in words or any(end.rank == rank for end in found):
            continue
        word = words[rank]
        if word.text:
            end = End(rank, None, word.text, word.because)
        else:
            end = End(rank, None, witness.text, told_by=witness.rank)
        found.append(end)
        witnesses.append(end)
    return found
