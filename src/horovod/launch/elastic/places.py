"""The six numbers of every rank of an elastic world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from horovod.bootstrap.store.membership import Six

__all__ = ["Seat", "places_of"]


class Seat(NamedTuple):
    """A slot: a host, and its number there."""

    host: str
    slot: int


def places_of(seats: Sequence[Seat]) -> list[Six]:
    """The places of ranks on these slots, by rank.

    Local ranks of a host are in the order of its slots, whatever that of the ranks: so a process that stays
    keeps the device that goes with its slot, though a newcomer takes a lower slot and a higher rank.
    """
    order = {host: number for number, host in enumerate(dict.fromkeys(seat.host for seat in seats))}
    local_ranks: dict[Seat, int] = {}
    sizes: Counter[str] = Counter()
    for seat in sorted(seats, key=lambda each: (order[each.host], each.slot)):
        local_ranks[seat] = sizes[seat.host]
        sizes[seat.host] += 1
    places: list[Six] = []
    for rank, seat in enumerate(seats):
        local_rank = local_ranks[seat]
        with_it = [host for host in order if sizes[host] > local_rank]
        places.append(
            (rank, len(seats), local_rank, sizes[seat.host], with_it.index(seat.host), len(with_it))
        )
    return places
