"""Place of this process, from its environment, and the topology of all, once they have met."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from horovod.bootstrap.place.launcher_channels import channels, pmix_job_size
from horovod.bootstrap.place.launchers import LAUNCHERS, OWN, LaunchVariables, meeting_point, present
from horovod.bootstrap.place.store_address import ADDRESS_VARIABLE, PORT_VARIABLE, read_store
from horovod.errors import ConfigError

__all__ = [
    "PORT_OF_KEY",
    "RankPlace",
    "Topology",
    "agree",
    "alone",
    "checked_rank",
    "no_store",
    "read_place",
]

_log = logging.getLogger("horovod.bootstrap")

PORT_OF_KEY = 0
"""In place of a port: it follows from the key of the job (``secret.port_of``)."""


@dataclass(frozen=True)
class Topology:
    """The world as users see it. Local and cross places are those of the launcher, or counted.

    Attributes:
        rank, size: place in the world.
        local_rank, local_size: place among the ranks of the same host.
        cross_rank, cross_size: place among the hosts that have this local rank.
        homogeneous: every rank has the same ``local_size``.
        hosts: name of the host of each rank, for messages.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RankPlace:
    """Place of this process as its environment says it.

    Attributes:
        launcher: who started it, for messages; "" if nobody did.
        local, cross: (rank, size) of each kind, None where the launcher did not say.
        host: the launcher's name for this host, else the machine's own.
        store: host and port of every way to the store, or the name of a Unix socket; empty if there is none.
            ``PORT_OF_KEY``, ``unix.NAME_OF_KEY``: see there.
        serves: this rank has to serve the store, as no launcher of ours does.
        job: names the job if the launcher does; "" if it does not.
        one_host: all ranks are on this host, as far as the launcher says.
        channels: over which rank 0 can tell the others where the store is, if nothing else says it.
    """

    launcher: str
    rank: int
    size: int
    local: tuple[int, int] | None
    cross: tuple[int, int] | None
    host: str
    store: tuple[tuple[str, int], ...] = ()
    serves: bool = False
    job: str = ""
    one_host: bool = False
    channels: tuple[str, ...] = ()


def read_place(
    environ: Mapping[str, str], ask_size: Callable[[Mapping[str, str]], int] = pmix_job_size
) -> RankPlace:
    """Find this process's place in the environment of ``horovodrun``, of another launcher, or of none.

    Args:
        environ: says who this process is.
        ask_size: asked for the size of the world when only PMIx knows it.

    Raises:
        ConfigError: a number is malformed or out of range, half of a pair is missing, there are other ranks
            but no store to meet them at, or the launcher is one that cannot be joined yet. Never a silent
            world of one.
    """
    store = read_store(environ)
    all_present = [each for each in (OWN, *LAUNCHERS) if present(each, environ)]
    family = all_present[0] if all_present else None
    host = environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    if family is None:
        if store:
            raise ConfigError(
                f"{ADDRESS_VARIABLE} is set, but HOROVOD_RANK and HOROVOD_SIZE are not: set all or none.",
                variable="HOROVOD_RANK",
            )
        return RankPlace("", 0, 1, (0, 1), (0, 1), host)
    if len(all_present) > 1:
        _log.debug("Started by %s; also there: %s", family.name, ", ".join(f.name for f in all_present[1:]))
    host = environ.get(family.hostname) or host
    rank, size = _rank_and_size(environ, family, ask_size)
    local = _pair(environ, family.local_rank, family.local_size)
    cross = _pair(environ, family.cross_rank, family.cross_size)
    if size == 1:
        local = local if family.keeps_locals else None
        return RankPlace(family.name, rank, size, local or (0, 1), cross or (0, 1), host)
    job = ""
    ways: tuple[str, ...] = ()
    if family is not OWN:
        meeting = meeting_point(family, environ, size)
        job = meeting.job if meeting is not None else family.job_name(environ)
        if not store and meeting is not None:
            store = ((meeting.host, PORT_OF_KEY),)
        ways = () if store else channels(environ, job)
    place = RankPlace(
        family.name,
        rank,
        size,
        local if family.keeps_locals else None,
        cross,
        host,
        store,
        serves=bool(store) and family is not OWN and rank == 0,
        job=job,
        one_host=local is not None and local[1] == size,
        channels=ways,
    )
    if not store and not ways:
        raise ConfigError(no_store(place), variable=ADDRESS_VARIABLE)
    return place


def alone(place: RankPlace) -> Topology:
    """The topology of a world of one: nobody to ask."""
    local, cross = place.local or (0, 1), place.cross or (0, 1)
    return Topology(0, 1, *local, *cross, homogeneous=True, hosts=(place.host,))


def agree(rank: int, places: Sequence[RankPlace], machines: Sequence[str] = ()) -> Topology:
    """The topology as rank ``rank`` sees it, from what every rank was told (``places`` by rank).

    What no launcher said is counted: ranks are of one host if their hosts have one name (and are one of
    ``machines``, if these are given). It is counted for all or for none, so that local ranks of a host are
    always different.

    Raises:
        ConfigError: the ranks were told things that cannot all be true.
    """
    size = len(places)
    for number, place in enumerate(places):
        if place.size != size:
            raise ConfigError(
                f"The ranks disagree on the size of the world: rank {number} on host {place.host} was told "
                f"{place.size}, rank {rank} on host {places[rank].host} was told {size}.",
                variable="HOROVOD_SIZE",
            )
    hosts = tuple(place.host for place in places)
    where = list(zip(hosts, machines, strict=True)) if machines else list(hosts)
    locals_ = _locals(places, where)
    mine = places[rank].cross
    if mine is None:
        same = [number for number in range(size) if locals_[number][0] == locals_[rank][0]]
        mine = (same.index(rank), len(same))
    homogeneous = len({local_size for _, local_size in locals_}) == 1
    return Topology(rank, size, *locals_[rank], *mine, homogeneous=homogeneous, hosts=hosts)


def _locals(places: Sequence[RankPlace], where: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Local rank and size of every rank; ``where``: equal for ranks of one host."""
    told = [place.local for place in places if place.local is not None]
    if len(told) == len(places):
        hosts = [place.host for place in places]
        if any(place.launcher == OWN.name for place in places):
            _check_locals(hosts, told)
            return told
        sizes = Counter(where)
        if len(set(zip(where, (local_rank for local_rank, _ in told), strict=True))) == len(places) and all(
            local_size == sizes[host] for host, (_, local_size) in zip(where, told, strict=True)
        ):
            return told
        _log.warning(
            "%s gave local ranks and sizes that do not fit the hosts %s: they are counted instead.",
            places[0].launcher,
            ", ".join(dict.fromkeys(hosts)),
        )
    seen: Counter[Hashable] = Counter()
    sizes = Counter(where)
    counted = []
    for host in where:
        counted.append((seen[host], sizes[host]))
        seen[host] += 1
    return counted


def _check_locals(hosts: Sequence[str], locals_: Sequence[tuple[int, int]]) -> None:
    seen: dict[tuple[str, int], int] = {}
    for number, (host, (local_rank, _)) in enumerate(zip(hosts, locals_, strict=True)):
        other = seen.setdefault((host, local_rank), number)
        if other != number:
            raise ConfigError(
                f"Ranks {other} and {number} were both told to be local rank {local_rank} of host {host}. "
                "Give them different HOROVOD_LOCAL_RANK, or leave it and HOROVOD_LOCAL_SIZE out.",
                variable="HOROVOD_LOCAL_RANK",
            )


def _rank_and_size(
    environ: Mapping[str, str], family: LaunchVariables, ask_size: Callable[[Mapping[str, str]], int]
) -> tuple[int, int]:
    if not family.sizes:
        rank, size = _number(environ, family.rank), ask_size(environ)
        if not 0 <= rank < size:
            raise ConfigError(f"{family.rank}={rank} is not one of {size} ranks.", variable=family.rank)
        return rank, size
    size_variable = next((name for name in family.sizes if environ.get(name)), family.sizes[0])
    for name, other in ((family.rank, size_variable), (size_variable, family.rank)):
        _require(environ, name, other)
    return checked_rank(environ, family.rank, size_variable)


def _require(environ: Mapping[str, str], name: str, other: str) -> None:
    if not environ.get(name):
        raise ConfigError(f"{other} is set, but {name} is not: set both or none.", variable=name)


def _pair(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int] | None:
    """A pair that the launcher may leave out: then it is counted when the ranks meet."""
    if not rank_name or not size_name or not (environ.get(rank_name) or environ.get(size_name)):
        return None
    _require(environ, rank_name, size_name)
    _require(environ, size_name, rank_name)
    return checked_rank(environ, rank_name, size_name)


def checked_rank(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """A rank and its size from two variables that are set.

    Raises:
        ConfigError: they are no such pair.
    """
    rank, size = _number(environ, rank_name), _number(environ, size_name)
    if size < 1:
        raise ConfigError(f"{size_name}={size} must be 1 or more.", variable=size_name)
    if not 0 <= rank < size:
        raise ConfigError(
            f"{rank_name}={rank} must be between 0 and {size - 1}, as {size_name}={size}.", variable=rank_name
        )
    return rank, size


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"{name}={environ[name]} must be a whole number.", variable=name) from None


def no_store(place: RankPlace) -> str:
    """Message for a rank that is told no place to meet the others: it says what to do."""
    rank, size = place.rank, place.size
    if place.launcher == OWN.name:
        return (
            f"HOROVOD_SIZE={size}, but {ADDRESS_VARIABLE} and {PORT_VARIABLE} are not set: how should "
            f"rank {rank} meet the others? Start the script with: horovodrun -np {size} python ..."
        )
    return (
        f"This process is rank {rank} of {size} of {place.launcher}, which does not say where to meet. "
        f"Set {ADDRESS_VARIABLE} to the address of rank 0's host and {PORT_VARIABLE} to a free port "
        f"there, the same for every rank, or start the script with: horovodrun -np {size} python ..."
    )
