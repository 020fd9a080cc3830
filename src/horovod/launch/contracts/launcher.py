"""The contract between a job of known ranks and a way of starting processes.

A launcher is one file and one row of `registry`. It finds the hosts, starts the ranks, passes their output
and results to `Output`, and reports what happens to them as events on a descriptor. The driver decides
when the ranks are ended. A launcher whose ranks a program starts only writes the command line of that
program; `horovod.launch.external` does the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.secret import KEY_BYTES
from horovod.launch.contracts.events import HostFacts
from horovod.launch.contracts.fleet import Processes, Request
from horovod.launch.output.streams import RESULT, STREAMS, Output
from horovod.launch.placement.hosts import Slot

__all__ = ["Launcher", "Prepared", "WorkerPlan"]

_JOB_ID_BYTES = 8


@dataclass(frozen=True)
class Prepared:
    """Facts and wishes of a launcher before the ranks are started."""

    store_hosts: Sequence[str]
    """Addresses of this machine, or the name of a Unix socket, at which the ranks' store is served."""
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    """All hosts by name; empty: the launcher places the ranks by itself, and says later where (`Placed`)."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    job_id: str = field(default_factory=lambda: secrets.token_hex(_JOB_ID_BYTES))
    carries_key: bool = True
    """The key is in the environment of the plan: on its way to the ranks nobody sees it."""
    reserved: Collection[str] = ()
    """Members of ``store_hosts`` that are opened later (`StoreServer.widen`)."""


class WorkerPlan(NamedTuple):
    """Plan for the ranks: what every one of them runs, and what differs between them."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    own_environment: Mapping[int, Mapping[str, str]]
    """By rank: what is set on top of `environment`."""
    call: Sequence[memoryview] = ()
    """Bytes that every rank can read, in one piece of memory for each host; then each also has a pipe for
    its result, the stream ``RESULT`` of `Output`. Both descriptors are in the rank's environment, as
    ``HOROVOD_RUN_DESCRIPTORS=call,result``.
    """
    call_is_input: bool = False
    """Every rank reads `call` on its standard input instead, from the beginning; there is no result."""
    stdin: int = -1
    """A descriptor of this process that rank 0 reads as its standard input; -1: it reads nothing."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams of each rank."""
        return (*STREAMS, RESULT) if self.call and not self.call_is_input else STREAMS


class Launcher(Protocol):
    """A way of starting processes. `prepare` comes first, `close` last, whatever happens between."""

    def prepare(self, request: Request) -> Prepared:
        """Find the hosts and what they are.

        Raises:
            ConfigError: it cannot do what the job asks for.
            HostsUnreachable: some of the hosts.
            JobInterrupted: a signal came.
        """

    def start(self, slots: Sequence[Slot], plan: WorkerPlan, store: StoreServer, output: Output) -> Processes:
        """Start one process per slot; what it prints and returns goes to `output`. No slots: see `Prepared`.

        Whatever happens to the launching process, even SIGKILL, ends the ranks.

        Raises:
            LaunchError: nothing could be started.
        """

    def close(self) -> None:
        """End what is left. Idempotent."""
