"""Rounds of a job: the one that a rank joins, and its keys in the store.

Ranks form a world once per ``init``, so a job has many rounds. A rank never joins the same round twice, and a
round that was given up is left behind by everybody; so ranks that retry, or come late, meet in the same round
again without having to agree on a number.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod.bootstrap.place import proc
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.table import Cause
from horovod.errors import RendezvousError, StoreTimeout

if TYPE_CHECKING:  # a launcher needs the name of the rounds only
    from horovod.bootstrap.place.topology import RankPlace
    from horovod.bootstrap.store.server import StoreServer

__all__ = [
    "ROUNDS",
    "Round",
    "announce_plan",
    "claim_round",
    "has_ended",
    "planned_epoch",
    "process_identity",
]

ROUNDS = "epoch/"
"""Prefix of all keys that rounds have in the store, in all epochs."""

_PLAN = "plan"
"""The present plan of a launcher that deals out ranks anew: its epoch and its size."""
_LATER_PLANS = "plan-"


@dataclass(frozen=True)
class Round:
    """Names in the store. ``previous`` is the scope of the round before, None for the first one."""

    scope: str
    previous: str | None

    @property
    def identities(self) -> str:
        return f"{self.scope}identity/"

    @property
    def outcomes(self) -> str:
        return f"{self.scope}outcome/"

    @property
    def listening(self) -> str:
        return f"{self.scope}listening/"

    @property
    def connected(self) -> str:
        return f"{self.scope}connected/"

    def group(self, first_rank: int) -> str:
        return f"{self.scope}group/{first_rank}/"


def announce_plan(store: StoreServer, number: int, size: int) -> None:
    """A launcher has dealt out the ranks for the ``number``-th time: they meet in an epoch of its own, where
    nobody is a rank yet. Who still waits for the world of the plan before hears of it.
    """
    if number > 1:
        text = (
            "The launcher has announced another world. Ask it for this process's rank, and call init() again."
        )
        store.put(_PLAN, {"epoch": _epoch_of(number), "size": size})
        store.fail(f"{ROUNDS}{_epoch_of(number - 1)}/", Cause(text))
    if number > 2:
        store.forget(f"{ROUNDS}{_epoch_of(number - 2)}/")  # nobody looks there any more


def planned_epoch(store: StoreClient, epoch: str, place: RankPlace) -> str:
    """The epoch of the present plan, if the launcher has dealt out ranks more than once; else ``epoch``.

    Raises:
        RendezvousError: this place is none of the present plan.
    """
    if epoch != _epoch_of(1):  # the driver of an elastic job has told it
        return epoch
    try:
        plan = store.get(_PLAN, 0.0)
    except StoreTimeout:
        return epoch
    if place.size != plan["size"]:
        raise RendezvousError(
            f"Rank {place.rank} of {place.size} on host {place.host} is none of the present world: the "
            f"launcher has announced one of {plan['size']} ranks. Ask it for this process's rank, and call "
            "init() again."
        )
    return str(plan["epoch"])


def _epoch_of(number: int) -> str:
    """Name of an epoch. The first plan has the one of jobs whose ranks stay what they are. The driver of an
    elastic job counts others.
    """
    return "0" if number == 1 else f"{_LATER_PLANS}{number}"


def claim_round(store: StoreClient, epoch: str, place: RankPlace, identity: dict[str, Any]) -> Round:
    """Join the first open round as ``place.rank`` and leave ``identity`` there.

    Raises:
        RendezvousError: another process has this rank.
    """
    owner = {"host": place.host, **process_identity()}
    last_key = f"{ROUNDS}{epoch}/last/{place.rank}"
    number = 0
    try:
        last = store.get(last_key, 0.0)
    except StoreTimeout:
        pass  # nobody has been this rank yet
    else:
        if not (
            last["owner"] == owner or has_ended(last["owner"], owner) or _moved(store, epoch, place, last)
        ):
            raise _taken(store, epoch, last["round"], place, last["owner"], owner)
        number = int(last["round"]) + 1
    while True:
        joined = Round(_scope(epoch, number), _scope(epoch, number - 1) if number else None)
        key = f"{joined.identities}{place.rank}"
        try:
            claimed, found = store.compare_and_set(key, None, {**identity, "owner": owner})
        except RendezvousError:
            if joined.scope not in store.aborted:
                raise
            number += 1  # the others have left this round
            continue
        if not claimed:
            raise _taken(store, epoch, number, place, found["owner"], owner)
        # Only now: who finds this entry can be sure that its owner is in that round and hears of an abort.
        store.set(last_key, {"round": number, "owner": owner})
        return joined


def _scope(epoch: str, number: int) -> str:
    return f"{ROUNDS}{epoch}/round/{number}/"


def _moved(store: StoreClient, epoch: str, place: RankPlace, last: dict[str, Any]) -> bool:
    """Return whether the last owner of this rank has joined a later round as another one: it had come with
    its rank of an earlier world, and has asked for the present one since.
    """
    for rank in range(place.size):
        try:
            other = store.get(f"{ROUNDS}{epoch}/last/{rank}", 0.0)
        except StoreTimeout:
            continue
        if rank != place.rank and other["owner"] == last["owner"] and other["round"] > last["round"]:
            return True
    return False


def _taken(
    store: StoreClient,
    epoch: str,
    number: int,
    place: RankPlace,
    other: dict[str, Any],
    owner: dict[str, Any],
) -> RendezvousError:
    """The error for both: the other one hears of it if it still waits in that round."""
    text = (
        f"Two processes say that they are rank {place.rank}: process {other['pid']} on host {other['host']} "
        f"and process {owner['pid']} on host {owner['host']}. Give each its own HOROVOD_RANK. "
    )
    if epoch.startswith(_LATER_PLANS):
        text += (
            "The launcher has announced another world: was one of them given its rank for an earlier world? "
            "Ask it for this process's rank before each hvd.init()."
        )
    else:
        text += (
            "Was one of them started by the other, with its environment? Children that run the script again "
            "(multiprocessing by spawn, workers of a loader) need hvd.init() below if __name__ == '__main__'."
        )
    cause = Cause(text, rank=place.rank, host=place.host)
    store.abort(_scope(epoch, number), cause)
    return cause.error()


def process_identity() -> dict[str, Any]:
    """Return an identity that no other process of any host has, as long as this one lives."""
    return {
        "boot_id": proc.boot_id(),
        "pid_namespace": proc.namespace("pid"),
        "pid": os.getpid(),
        "started": _start_time(os.getpid()),
    }


def has_ended(other: dict[str, Any], me: dict[str, Any]) -> bool:
    """Return whether ``other`` is known to be gone: only a process of this machine can be looked up."""
    if any(other[name] != me[name] for name in ("boot_id", "pid_namespace")):
        return False
    return bool(_start_time(other["pid"]) != other["started"])


def _start_time(pid: int) -> int | None:
    stat = proc.stat_of(pid)
    return None if stat is None else stat.started
