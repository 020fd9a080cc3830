"""Places for the ranks of a job whose tasks a system has dealt in its own way: a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.launch.placement.hosts import Slot, place_ranks
from horovod.launch.tasks.messages import Arrival

__all__ = ["Placement", "place_tasks", "unique_names"]


@dataclass(frozen=True)
class Placement:
    """``tasks`` by rank, and their slots; ``gpus``: of each host, those of all its tasks, in that order."""

    tasks: tuple[Arrival, ...]
    slots: tuple[Slot, ...]
    gpus: Mapping[str, tuple[str, ...]]


def place_tasks(arrivals: Sequence[Arrival]) -> Placement:
    """Ranks host by host, whatever the order of the tasks: the host of task 0 comes first, and on a host the
    order is that of the tasks. Spark deals tasks to hosts in turns.
    """
    in_order = sorted(arrivals, key=lambda each: each.index)
    names = unique_names(in_order)
    hosts = list(dict.fromkeys(names[each.machine] for each in in_order))
    by_rank = sorted(in_order, key=lambda each: hosts.index(names[each.machine]))
    slots = place_ranks([names[each.machine] for each in by_rank])
    gpus: dict[str, tuple[str, ...]] = {}
    for each, slot in zip(by_rank, slots, strict=True):
        gpus[slot.hostname] = gpus.get(slot.hostname, ()) + each.gpus
    return Placement(tuple(by_rank), slots, {host: tuple(dict.fromkeys(all_)) for host, all_ in gpus.items()})


def unique_names(arrivals: Sequence[Arrival]) -> dict[str, str]:
    """A name for each machine: what its host calls itself, with a number where several call themselves the
    same, such as the containers of a host.
    """
    names: dict[str, str] = {}
    for each in arrivals:
        if each.machine not in names:
            name, number = each.host, 1
            while name in names.values():
                number += 1
                name = f"{each.host}.{number}"
            names[each.machine] = name
    return names
