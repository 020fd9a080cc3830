"""Findings of a comparison of replicas, made from the rows of all ranks, and their sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

__all__ = ["Finding", "ReplicaRow", "find", "sentence"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_BROADCAST, _COVERED, _BYPASSED = 1, 2, 4
_FIXED: Final = 2
"""Numbers before the fingerprints: steps + 1, which is 0 in a row that is empty, and flags."""

_MOST_NAMES: Final = 3

_STEPS_DIFFER: Final = (
    "by another learning rate, scheduler, loss scale or state of the optimizer (load these on all ranks, or "
    "broadcast them)"
)


@dataclass(frozen=True)
class ReplicaRow:
    """Report of one rank on its weights.

    Attributes:
        steps: how many it has begun.
        broadcast: whether it ever took part in a broadcast of weights.
        covered: whether that wrote all of these.
        bypassed: the weights are those of an optimizer that has been wrapped, and steps itself.
        fingerprints, telling: by tensor, see ``Weights``.
    """

    steps: int
    broadcast: bool
    covered: bool
    bypassed: bool
    fingerprints: Sequence[int]
    telling: Sequence[bool]

    @property
    def length(self) -> int:
        return _FIXED + len(self.fingerprints)

    def numbers(self) -> Array:
        """As integers: int64, shape ``(length,)``. The lowest bit of a fingerprint gives way to whether it is
        telling."""
        flags = _BROADCAST * self.broadcast + _COVERED * self.covered + _BYPASSED * self.bypassed
        prints = [each & ~1 | telling for each, telling in zip(self.fingerprints, self.telling, strict=True)]
        return np.array([self.steps + 1, flags, *prints], np.uint64).view(np.int64)


@dataclass(frozen=True)
class Finding:
    """A difference.

    Attributes:
        ranks: those that differ, ascending.
        others: those that they differ from: the largest group of equal ones, or that of the lowest rank.
        tensors: the names of what differs, in order.
        of: how many tensors were compared.
        teller: the rank that tells.
        never: ranks that never took part in a broadcast of weights.
        uncovered: ranks that did, but not for all of these.
        bypassed: the wrapped optimizer is not the one that steps.
        steps: by rank, of those whose number of steps differs.
        equal_after: the step after which all were equal for the last time, 0: never.
        joined: all ranks have joined since.
    """

    ranks: Sequence[int]
    others: Sequence[int]
    tensors: Sequence[str]
    of: int
    teller: int
    never: Sequence[int]
    uncovered: Sequence[int]
    bypassed: bool
    steps: dict[int, int]
    equal_after: int
    joined: bool


def find(
    rows: Array, members: Sequence[int], names: Sequence[str], *, equal_after: int, joined: bool
) -> Finding | None:
    """Compare ``rows``, one for each of ``members``; None: nothing differs."""
    present = [position for position in range(len(members)) if rows[position, 0]]
    if not present:
        return None
    given = rows[present]
    prints = given[:, _FIXED:]
    telling = (prints & 1).any(axis=0)
    prints = np.where(telling, prints & ~1, 0)
    differs = (prints != prints[0]).any(axis=0)
    if not differs.any():
        return None
    alike: dict[bytes, list[int]] = {}
    for position, print_ in zip(present, prints, strict=True):
        alike.setdefault(print_.tobytes(), []).append(members[position])
    others = max(alike.values(), key=len)  # the first of those that are as large
    ranks = sorted(rank for group in alike.values() if group is not others for rank in group)
    flags = {members[position]: int(row[1]) for position, row in zip(present, given, strict=True)}
    steps = {members[position]: int(row[0]) - 1 for position, row in zip(present, given, strict=True)}
    return Finding(
        ranks=ranks,
        others=others,
        tensors=[name for name, other in zip(names, differs, strict=True) if other],
        of=len(names),
        teller=members[present[0]],
        never=[rank for rank, flag in flags.items() if not flag & _BROADCAST],
        uncovered=[rank for rank, flag in flags.items() if flag & _BROADCAST and not flag & _COVERED],
        bypassed=any(flag & _BYPASSED for flag in flags.values()),
        steps=steps if len(set(steps.values())) > 1 else {},
        equal_after=equal_after,
        joined=joined,
    )


def sentence(finding: Finding, steps: int, remedy: str, bypassed: str = "") -> str:
    """The whole message.

    Args:
        steps: after which step it was found.
        remedy: the call that makes weights equal.
        bypassed: the cause where nothing was exchanged.
    """
    shown = ", ".join(finding.tensors[:_MOST_NAMES])
    more = len(finding.tensors) - _MOST_NAMES
    where = f"{shown} and {more} more" if more > 0 else shown
    cause = bypassed if finding.bypassed else _cause(finding, remedy)
    return (
        f"Replicas differ: after step {steps} {_ranks(finding.ranks)} "
        f"{'has' if len(finding.ranks) == 1 else 'have'} other weights than {_ranks(finding.others)}, in "
        f"{len(finding.tensors)} of {finding.of} tensors: {where}. Likely cause: {cause} "
        "HOROVOD_REPLICA_CHECK=error makes this an error, off turns the comparison off."
    )


def _cause(finding: Finding, remedy: str) -> str:
    if finding.steps:
        counts = ", ".join(f"rank {rank} has made {count}" for rank, count in finding.steps.items())
        return f"the ranks have not made the same number of steps ({counts})."
    if finding.joined:
        return (
            "a rank that had called hvd.join() took no part in the last steps of the others. Broadcast the "
            "weights and the state of the optimizer again, from the rank that hvd.join() returns."
        )
    if finding.equal_after:
        return (
            f"they were equal after step {finding.equal_after}, so something has changed since on one rank "
            "alone: a gradient was changed while it was exchanged (call optimizer.synchronize() before), a "
            "weight was written outside of the optimizer, a kernel rounds differently each time, or ranks "
            f"step differently, {_STEPS_DIFFER}."
        )
    if finding.never:
        everybody = len(finding.never) == len(finding.ranks) + len(finding.others)
        who = "no rank" if everybody else _ranks(finding.never)
        return f"{who} {'has' if everybody else 'never'} called {remedy}: call it before the first step."
    if finding.uncovered:
        return (
            f"{remedy.partition('(')[0]} was called, but not with these tensors: give it all of them, "
            "and call it after the last one was made or loaded."
        )
    return (
        "something has changed them on one rank alone since they were broadcast: weights that were loaded or "
        "written later, a gradient that was changed while it was exchanged (call optimizer.synchronize() "
        f"before), or ranks step differently, {_STEPS_DIFFER}."
    )


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:7]))} and {len(ranks) - 7} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
