"""Hosts and slots: reading them, and placing ranks on them.

Everything here is a pure function except `is_this_machine`, which asks the resolver, and what reads a file.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from horovod.bootstrap.records import text
from horovod.errors import ConfigError, LaunchError
from horovod.launch.phrases import counted

__all__ = [
    "HOSTS_FORM",
    "MOST_HOSTS",
    "MOST_SLOTS",
    "Allocated",
    "HostSlots",
    "Slot",
    "assign_ranks",
    "expand_list",
    "expand_ranges",
    "host_name",
    "host_text",
    "is_this_machine",
    "merge_hosts",
    "named",
    "named_hosts",
    "number_of",
    "parse_hostfile",
    "parse_hosts",
    "place_ranks",
    "read_hostfile",
    "too_few_slots",
]

HOSTS_FORM = "host:slots[,host:slots...], for example localhost:4, server1:2,server2:2 or server[1-2]:2"

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # with "-" in front it would be an option of ssh
_ADDRESS6 = r"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?\]"
_HOST = rf"(?:{_ADDRESS6}|{_NAME})"
_ENTRY = re.compile(rf"({_HOST}):([0-9]{{1,9}})")
_RANGES = re.compile(r"\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")
MOST_HOSTS = 1 << 16
MOST_SLOTS = 10**9 - 1
"""Of one host."""
_MOST_RANGES = 8  # in one name
_MOST_BYTES = 16 << 20  # of a host file
_ALWAYS_LOCAL = frozenset({"localhost", "localhost.localdomain", "127.0.0.1"})
# Words of a host file line that say something else than the number of slots: Open MPI's limit, and
# what MPICH's and Intel's process managers write behind the name.
_OTHER_KEYS = frozenset({"max_slots", "max-slots", "user", "ifname", "binding", "map", "bindmap"})


@dataclass(frozen=True)
class HostSlots:
    """A host as the user or a batch system named it, and how many ranks fit there.

    Raises:
        ConfigError: ssh or another program would not take the name for one, or nothing has so many slots.
    """

    name: str
    slots: int

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("-") or not self.name.isprintable() or " " in self.name:
            raise ConfigError(
                f"{self.name!r} is not the name of a host: programs would take it for something else."
            )
        if not 0 <= self.slots <= MOST_SLOTS:
            raise ConfigError(f"Host {self.name} cannot have {self.slots:.6g} slots.")


def host_name(value: object) -> str:
    """Read the name of a host in a message. Raises ``ValueError``."""
    return HostSlots(text()(value), 1).name


class Allocated(NamedTuple):
    """Hosts that a batch system has given to this job, and how it said so."""

    source: str
    hosts: tuple[HostSlots, ...]
    processes: int = 0
    """Number of processes that it is meant for; 0: one for each slot."""
    slurm_job: str = ""
    """Of Slurm, which can be asked what becomes of it."""


@dataclass(frozen=True)
class Slot:
    """Place of one rank, and the six numbers that its worker is told."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def parse_hosts(text: str) -> tuple[HostSlots, ...]:
    """Read the value of ``-H``; repeated hosts are merged.

    ``server[1-3,7]:4`` means four hosts with four slots each, ``[fe80::1]:4`` is an IPv6 address.

    Raises:
        ConfigError: an entry is not ``host:slots``.
    """
    return merge_hosts(_parse_entry(one, text) for one in expand_list(text))


def named_hosts(hosts: str | None, hostfile: str | None) -> tuple[HostSlots, ...]:
    """Read the hosts that a user has named, by the value of ``-H`` or by a file; empty: by neither.

    Raises:
        ConfigError: they cannot be read.
    """
    if hosts is not None:
        return parse_hosts(hosts)
    return () if hostfile is None else read_hostfile(hostfile)


def expand_list(text: str) -> list[str]:
    """The entries between commas, with their ranges expanded.

    Raises:
        ConfigError: there are far too many.
    """
    found: list[str] = []
    for entry in re.split(r",(?![^\[]*\])", text):  # not at a comma in brackets
        found += expand_ranges(entry.strip())
        if len(found) > MOST_HOSTS:
            raise ConfigError(f"Hosts {text[:200]!r} cannot be read: more than {MOST_HOSTS} hosts.")
    return found


def number_of(text: str, what: str) -> int:
    """A number of slots or the like in ``what`` a batch system says.

    Raises:
        ConfigError: it is none.
    """
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ConfigError(f"{what} cannot be read: {text[:60]!r} is not a number.")
    return int(text)


def expand_ranges(name: str) -> list[str]:
    """``gpu[08-10,20]-ib`` -> ``gpu08-ib``, ``gpu09-ib``, ``gpu10-ib``, ``gpu20-ib``, as Slurm writes it.

    Raises:
        ConfigError: a range has no end, or far too many hosts.
    """
    found = _RANGES.search(name)
    if found is None:
        return [name]
    numbers: list[str] = []
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        count = int(last or first) - int(first) + 1
        if not 0 < count <= MOST_HOSTS:
            raise ConfigError(f"Hosts {name!r} cannot be read: {part} is not a range of numbers.")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(first) + count)]
        if len(numbers) > MOST_HOSTS:
            raise ConfigError(f"Hosts {name!r} cannot be read: more than {MOST_HOSTS} hosts.")
    if name.count("[") > _MOST_RANGES:
        raise ConfigError(f"Hosts {name!r} cannot be read: more than {_MOST_RANGES} ranges in one name.")
    rest = expand_ranges(name[found.end() :])
    if len(numbers) * len(rest) > MOST_HOSTS:
        raise ConfigError(f"Hosts {name!r} cannot be read: more than {MOST_HOSTS} hosts.")
    return [f"{name[: found.start()]}{number}{end}" for number in numbers for end in rest]


def parse_hostfile(text: str, path: str, *, default_slots: int = 1) -> tuple[HostSlots, ...]:
    """Read a host file: one host per line, ``#`` starts a comment, repeated hosts are merged.

    A line is ``name``, ``name:N`` or ``name slots=N``; a bare name has `default_slots`. ``max_slots=`` and
    the words that MPICH's machine files carry are accepted and have no meaning here.

    Raises:
        ConfigError: a line cannot be read, or there is no host at all; names file and line.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            where = f"{path}, line {number}"
            for name in expand_ranges(words[0]):
                hosts.append(_parse_hostfile_line([name, *words[1:]], where, default_slots))
    if not hosts:
        raise ConfigError(f"The host file {path} names no host. Write one per line: server1 slots=4")
    return merge_hosts(hosts)


def read_hostfile(path: str, named_by: str = "", *, default_slots: int = 1) -> tuple[HostSlots, ...]:
    """Read a host file by its path, as `host_text` and `parse_hostfile` do."""
    return parse_hostfile(host_text(path, named_by), path, default_slots=default_slots)


def host_text(path: str, named_by: str = "") -> str:
    """The text of a file with hosts. ``named_by``: the variable that names it, if any.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            return data.decode("utf-8-sig")  # some editors begin a file with a mark
        why = f"it has more than {_MOST_BYTES >> 20} MiB"
    except (OSError, ValueError) as error:  # a path with a zero in it is a ValueError, too
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
    source = f"{named_by} names the hosts in {path}, which" if named_by else f"The host file {path}"
    hint = " Give the hosts with -H." if named_by else ""
    raise ConfigError(f"{source} cannot be read: {why}.{hint}", variable=named_by or None)


def merge_hosts(hosts: Iterable[HostSlots]) -> tuple[HostSlots, ...]:
    """Add up the slots of entries with the same name, in order of first appearance.

    Raises:
        ConfigError: there are far too many hosts.
    """
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
        if len(slots) > MOST_HOSTS:
            raise ConfigError(f"The hosts cannot be read: more than {MOST_HOSTS} of them.")
    return tuple(HostSlots(name, count) for name, count in slots.items())


def named(hosts: Iterable[HostSlots]) -> str:
    """The hosts as ``-H`` takes them."""
    return ",".join(
        f"[{host.name}]:{host.slots}" if ":" in host.name else f"{host.name}:{host.slots}" for host in hosts
    )


def assign_ranks(
    hosts: Sequence[HostSlots], min_processes: int, max_processes: int | None = None
) -> tuple[Slot, ...]:
    """Place ranks host by host, in the order of `hosts`, until `max_processes` are placed.

    Returns:
        Slots in rank order. *Cross rank* counts the hosts that have the same local rank.

    Raises:
        ConfigError: fewer than `min_processes` slots; names both numbers.
    """
    available = sum(host.slots for host in hosts)
    if available < min_processes:
        raise ConfigError(
            f"{too_few_slots(min_processes, available)} ({named(hosts)}). Lower -np or give the hosts more "
            "slots."
        )
    to_place = available if max_processes is None else min(available, max_processes)
    names: list[str] = []
    for host in hosts:
        names += [host.name] * min(host.slots, to_place - len(names))
    return place_ranks(names)


def too_few_slots(processes: int, slots: int) -> str:
    """Message that so many processes do not fit, without the end of the sentence."""
    asked = f"{counted(processes, 'process', 'processes')} {'was' if processes == 1 else 'were'} requested"
    return f"{asked}, but the hosts have {counted(slots, 'slot')}"


def place_ranks(hosts: Sequence[str]) -> tuple[Slot, ...]:
    """The six numbers of every rank, from the hosts they are on. `hosts` is by rank."""
    sizes = Counter(hosts)
    with_local_rank: Counter[int] = Counter()
    cross_ranks: dict[tuple[str, int], int] = {}
    for host, size in sizes.items():
        for local_rank in range(size):
            cross_ranks[host, local_rank] = with_local_rank[local_rank]
            with_local_rank[local_rank] += 1
    seen: Counter[str] = Counter()
    slots = []
    for rank, host in enumerate(hosts):
        local_rank = seen[host]
        seen[host] += 1
        cross = cross_ranks[host, local_rank], with_local_rank[local_rank]
        slots.append(Slot(host, rank, len(hosts), local_rank, sizes[host], *cross))
    return tuple(slots)


def is_this_machine(name: str) -> bool:
    """True if `name` means the machine this runs on.

    A name is ours when it resolves to an address that a socket here can be bound to.

    Raises:
        LaunchError: the name cannot be resolved.
    """
    absolute = name.removesuffix(".")  # as DNS ends a name that no search list completes
    if absolute in _ALWAYS_LOCAL or absolute == socket.gethostname():
        return True
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(
            f"Host {name} is unknown: {error.strerror or error}. Check its spelling in -H or the host file."
        ) from error
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


def _parse_entry(entry: str, whole: str) -> HostSlots:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        if user := _user_in(entry):
            raise ConfigError(f"Hosts {whole!r} cannot be read: {_say_user_elsewhere(*user)}")
        what = f"{entry!r} in it is not" if entry else "an entry in it is empty, not"
        raise ConfigError(f"Hosts {whole!r} cannot be read: {what} host:slots. Expected {HOSTS_FORM}.")
    return HostSlots(match[1].strip("[]"), int(match[2]))


def _parse_hostfile_line(words: list[str], where: str, default_slots: int) -> HostSlots:
    match = re.fullmatch(rf"({_HOST})(?::([0-9]{{1,9}}))?", words[0])
    if match is None:
        if user := _user_in(words[0]):
            raise ConfigError(f"{where}: {_say_user_elsewhere(*user)}")
        raise _unreadable(where, words[0])
    slots = int(match[2]) if match[2] else default_slots
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key == "slots" and re.fullmatch("[0-9]{1,9}", value):
            slots = int(value)
        elif not equals or key not in _OTHER_KEYS:
            raise _unreadable(where, word)
    return HostSlots(match[1].strip("[]"), slots)


def _user_in(word: str) -> tuple[str, str] | None:
    """The user and the host of ``me@host``; None: there is no user in it."""
    user, at, host = word.partition("@")
    return (user, host) if at and user and host else None


def _say_user_elsewhere(user: str, host: str) -> str:
    name = host.partition(":")[0]
    return (
        f"the user of {user}@{name} has another place. Write {host} here, and --ssh-args='-l {user}'; or, "
        f"for this host only, in ~/.ssh/config: Host {name}, and below it User {user}."
    )


def _unreadable(where: str, word: str) -> ConfigError:
    return ConfigError(f"{where}: cannot read {word!r}. Expected a line such as: server1 slots=4")
