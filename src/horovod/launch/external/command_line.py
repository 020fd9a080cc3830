"""From a job to the command line of another launcher."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.bootstrap import unix
from horovod.bootstrap.secret import SECRET_VARIABLE
from horovod.launch.environment import for_other_hosts
from horovod.launch.external.key import NO_CARD
from horovod.launch.external.order import ExternalLaunch, Order, StartLine, exported_names
from horovod.launch.job import Job
from horovod.launch.launchers.contract import LAUNCHERS, load
from horovod.launch.placement.addresses import names_of_this_machine, store_hosts
from horovod.launch.placement.hosts import HostSlots, assign_ranks

__all__ = ["dry_line", "make_order", "start_line", "stays_here", "store_hosts_for", "used_hosts"]


def start_line(order: Order, launcher: str) -> StartLine:
    """The command line of `launcher` for `order`.

    Raises:
        ConfigError: it cannot do what was asked for.
        LaunchError: it is not there, or not known.
    """
    line: StartLine = load(launcher)(order)
    return line


def make_order(
    job: Job,
    external: ExternalLaunch,
    environment: Mapping[str, str],
    hosts: Sequence[HostSlots],
    folder: Path,
    card: str = NO_CARD,
) -> Order:
    """What the other launcher has to do for `job`; `environment` is that of the job, `card` leads to its
    key.
    """
    ssh = [] if job.ssh.port is None else ["-p", str(job.ssh.port)]
    if job.ssh.identity_file is not None:
        ssh += ["-i", job.ssh.identity_file]
    return Order(
        command=(
            sys.executable,
            "-m",
            "horovod.launch.external.rank_wrapper",
            external.launcher,
            card,
            *job.command,
        ),
        processes=job.processes,
        hosts=tuple(hosts),
        # A dry run has the user's own environment, with whatever key is in that.
        environment={name: value for name, value in environment.items() if name != SECRET_VARIABLE},
        exported=exported_names(for_other_hosts(environment)[0]),
        folder=folder,
        arguments=external.arguments,
        binding=external.binding,
        interfaces=job.interfaces,
        ssh=(*ssh, *job.ssh.arguments),
        tcp=external.tcp,
    )


def used_hosts(job: Job) -> tuple[HostSlots, ...]:
    """The hosts that get ranks, with how many; empty if nobody has named any.

    Raises:
        ConfigError: there are fewer slots than processes.
    """
    if not job.hosts:
        return ()
    counts = Counter(slot.hostname for slot in assign_ranks(job.hosts, job.processes, job.processes))
    return tuple(HostSlots(name, count) for name, count in counts.items())


def dry_line(job: Job, external: ExternalLaunch, inherited: Mapping[str, str]) -> StartLine:
    """The command line that `job` would be started with, but for the variables that the job itself adds.

    Raises:
        ConfigError: the launcher cannot do what was asked for.
        LaunchError: it is not there, or not known.
    """
    with tempfile.TemporaryDirectory(prefix="rueda-launch-") as folder:
        order = make_order(job, external, inherited, used_hosts(job), Path(folder))
        return start_line(order, external.launcher)


def store_hosts_for(hosts: Sequence[HostSlots], launcher: str, interfaces: Sequence[str]) -> list[str]:
    """Where to serve the ranks' store: at the addresses on the way to the hosts, or at a socket if all are
    here.
    """
    elsewhere = other_hosts(hosts)
    if stays_here(hosts, launcher):
        return [unix.fresh_name()]
    # Where nobody has named hosts, all usable addresses are offered.
    seen = {_address_towards(name) for name in elsewhere}
    return store_hosts(interfaces, sorted(filter(None, seen)))


def stays_here(hosts: Sequence[HostSlots], launcher: str) -> bool:
    """Whether all ranks will be on this machine."""
    return not other_hosts(hosts) and bool(hosts or LAUNCHERS[launcher].stays_here)


def other_hosts(hosts: Sequence[HostSlots]) -> list[str]:
    """Those that are not this machine."""
    names = [host.name for host in hosts]
    ours = names_of_this_machine(names)
    return [name for name in names if name not in ours]


def _address_towards(host: str) -> str:
    """Our own address for packets to `host`; empty if there is no way. Nothing is sent."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                found = str(probe.getsockname()[0])
                if not found.startswith("127.") and found != "::1":
                    return found
    except OSError:
        pass  # unknown here, or no route: another host may be
    return ""
