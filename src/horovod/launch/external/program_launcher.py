"""Common parts of launchers whose ranks a program on PATH starts, such as ``mpirun``.

The program starts one wrapper per rank (`rank_wrapper`), which runs the command and tells this process how
it ended (`workers`). A launcher of this kind is a subclass that says how the program is called.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

from horovod.bootstrap.network.listening import source_towards
from horovod.bootstrap.network.routes import resolve
from horovod.bootstrap.place.interpreter import module_words
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.errors import ConfigError
from horovod.launch.contracts.fleet import Request
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.launcher import Prepared, WorkerPlan
from horovod.launch.contracts.registry import LAUNCHERS, load_launcher
from horovod.launch.environment import for_other_hosts
from horovod.launch.external.key import NO_CARD, make_key
from horovod.launch.external.order import Order, StartLine, exported_names
from horovod.launch.external.workers import ExternalWorkers
from horovod.launch.output.streams import Output
from horovod.launch.placement.addresses import store_hosts
from horovod.launch.placement.hosts import HostSlots, Slot
from horovod.launch.programs import find_program

__all__ = ["ProgramLauncher", "dry_line", "make_order"]


class ProgramLauncher(ABC):
    """A `Launcher` by the program of its row. It decides where ranks run: they are numbered when they are
    there.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-launch-")

    @abstractmethod
    def start_line(self, order: Order) -> StartLine:
        """The command line of the program for `order`.

        Raises:
            ConfigError: it cannot do what was asked for.
            LaunchError: it does not work, or is not known.
        """

    def prepare(self, request: Request) -> Prepared:
        self._request = request
        carried = make_key(request.inherited, Path(self._folder.name), elsewhere=not request.all_here)
        self._carried = carried
        if request.all_here:
            places = [unix.fresh_name()]
        else:
            # Where nobody has named hosts, all usable addresses are offered.
            seen = {_address_towards(name) for name in request.elsewhere}
            places = store_hosts(request.job.interfaces, sorted(filter(None, seen)))
        return Prepared(places, key=carried.key, job_id=carried.name, carries_key=False)

    def start(
        self, slots: Sequence[Slot], plan: WorkerPlan, store: StoreServer, output: Output
    ) -> ExternalWorkers:
        line = self.line_for(self._request.job, plan.environment, self._carried.card)
        self._request.console.narrate(f"starting {shlex.join(line.words)}")
        return ExternalWorkers(
            self._request, used_hosts(self._request.job), line, store, self._carried.key, output, plan.stdin
        )

    def line_for(self, job: Job, environment: Mapping[str, str], card: str = NO_CARD) -> StartLine:
        """The command line for `job`; `environment` is that of the job, `card` leads to its key."""
        return self.start_line(make_order(job, environment, Path(self._folder.name), card))

    def close(self) -> None:
        self._folder.cleanup()


def dry_line(job: Job, inherited: Mapping[str, str]) -> StartLine:
    """The command line that `job` would be started with, but for the variables that the job itself adds.

    Raises:
        ConfigError: the launcher cannot do what was asked for.
        LaunchError: it is not there, or not known.
    """
    with closing(cast(ProgramLauncher, load_launcher(LAUNCHERS[job.launcher]))) as launcher:
        return launcher.line_for(job, inherited)


def make_order(job: Job, environment: Mapping[str, str], folder: Path, card: str = NO_CARD) -> Order:
    """Make the order to the program for `job`; arguments as of `ProgramLauncher.line_for`.

    Raises:
        ConfigError: there is no such program.
    """
    row = LAUNCHERS[job.launcher]
    program = find_program(row.program, environment)
    if program is None:
        raise ConfigError(row.missing)
    ssh = [] if job.ssh.port is None else ["-p", str(job.ssh.port)]
    if job.ssh.identity_file is not None:
        ssh += ["-i", job.ssh.identity_file]
    return Order(
        program=program,
        command=(
            sys.executable,
            *module_words("horovod.launch.rank_wrapper", top=str(Path(__file__).parents[3])),
            job.launcher,
            card,
            *job.command,
        ),
        processes=job.processes,
        hosts=used_hosts(job),
        # A dry run has the user's own environment, with whatever key is in that.
        environment={name: value for name, value in environment.items() if name != SECRET_VARIABLE},
        exported=exported_names(for_other_hosts(environment)[0]),
        folder=folder,
        arguments=job.arguments,
        binding=job.binding,
        interfaces=job.interfaces,
        ssh=(*ssh, *job.ssh.arguments),
        tcp=job.tcp,
    )


def used_hosts(job: Job) -> tuple[HostSlots, ...]:
    """The hosts that get ranks, with how many; empty if nobody has named any."""
    counts = Counter(slot.hostname for slot in job.place()) if job.hosts else {}
    return tuple(HostSlots(name, count) for name, count in counts.items())


def _address_towards(host: str) -> str:
    """Our own address for packets to `host`; empty if there is no way that leaves this machine."""
    routes, _ = resolve([(host, 0)])
    found = (source_towards(route.host) for route in routes)
    return next((own for own in found if own and own != "::1" and not own.startswith("127.")), "")
