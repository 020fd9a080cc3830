"""Ranks on several hosts: through ssh and an agent on each, and on this machine without ssh."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from horovod.launch.agent import bundle
from horovod.launch.agent_client.connections import Connections
from horovod.launch.agent_client.ssh_command import remote_shell
from horovod.launch.contracts.fleet import FleetWorker, Grounds, Request
from horovod.launch.environment import current_directory, for_other_hosts
from horovod.launch.launchers.closed_fleet import ClosedAgentFleet, Surroundings
from horovod.launch.launchers.local import LocalFleet, allow_descriptors
from horovod.launch.output.streams import Output

__all__ = ["SshFleet"]

_ATTEMPTS = 5
_DESCRIPTORS_PER_HOST = 3
_DESCRIPTORS_PER_RANK = 6  # of this host, while they are started; then files of the output
_SPARE_DESCRIPTORS = 64


class SshFleet(ClosedAgentFleet):
    """The fleet of a job that cannot grow."""

    def __init__(self, request: Request, output: Output) -> None:
        self._text = bundle.text()
        self._directory = current_directory()  # it may be removed later
        nofile = allow_descriptors(
            _DESCRIPTORS_PER_HOST * len(request.elsewhere)
            + _DESCRIPTORS_PER_RANK * len(request.slots)
            + _SPARE_DESCRIPTORS
        )
        request.console.narrate(f"remote hosts: {', '.join(request.elsewhere)}; connecting by ssh")
        connections = Connections(self._text, request.limits.silence_s, attempts=_ATTEMPTS)
        super().__init__(request, output, connections, LocalFleet(request, output, nofile=nofile))

    def grounds(self) -> Grounds:
        return Grounds(None)

    def reach(self, host: str) -> None:
        request = self.request
        if host in request.here:
            assert self._local is not None
            self._local.reach(host)
            return
        command = remote_shell(
            host,
            request.job.ssh,
            request.inherited,
            sys.executable,
            len(self._text),
            request.limits.silence_s,
        )
        self.connections.reach(host, command)

    def surroundings(self, name: str) -> Surroundings:
        environment, defaults = for_other_hosts(self.plan.environment)
        return Surroundings(self.plan.command, environment, defaults, self._directory)

    def start(self, workers: Sequence[FleetWorker]) -> None:
        away: dict[str, list[FleetWorker]] = {}
        here = []
        for worker in workers:
            if worker.host in self.request.here:
                here.append(worker)
            else:
                away.setdefault(worker.host, []).append(worker)
        self.start_there(away)
        if here:
            self.start_here(here)
