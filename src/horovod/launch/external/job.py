"""A job that another launcher starts: ``horovodrun --launcher mpirun``, ``srun``, ``jsrun``."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.bootstrap.addresses import join_hosts
from horovod.bootstrap.store import StoreServer
from horovod.bootstrap.store_address import shown
from horovod.errors import LaunchError
from horovod.launch.environment import (
    failure_patience_s,
    interface_environment,
    job_environment,
    silence_s,
    start_timeout_s,
)
from horovod.launch.external.command_line import (
    make_order,
    start_line,
    stays_here,
    store_hosts_for,
    used_hosts,
)
from horovod.launch.external.key import CarriedKey, make_key
from horovod.launch.external.order import ExternalLaunch
from horovod.launch.external.workers import ExternalWorkers, Limits
from horovod.launch.job import Job, Results, raise_for, tell_store
from horovod.launch.output.console import Console
from horovod.launch.supervision.signals import Signals
from horovod.launch.supervision.supervisor import supervise

__all__ = ["run_external"]


def run_external(
    job: Job,
    external: ExternalLaunch,
    inherited: Mapping[str, str],
    console: Console,
    results: Results | None = None,
) -> None:
    """Run `job` by the other launcher until nothing of it is left. `results` is filled as by `run_job`.

    Raises:
        ConfigError: there are fewer slots than processes, or the launcher cannot do what was asked for.
        CommandNotStarted: the command cannot be run.
        WorkerFailed: a rank ended with an error, the first one; or without saying how.
        JobInterrupted: a signal to this process ended the job.
        LauncherFailed: the other launcher failed.
        LaunchError: the job could not be started or watched.
    """
    hosts = used_hosts(job)
    with Signals() as signals, tempfile.TemporaryDirectory(prefix="rueda-launch-") as folder:
        carried = make_key(inherited, Path(folder), elsewhere=not stays_here(hosts, external.launcher))
        with _make_store(carried, store_hosts_for(hosts, external.launcher, job.interfaces)) as store:
            console.narrate(f"serving the store at {shown(store.addresses)}")
            environment = job_environment(
                inherited,
                {**interface_environment(job.interfaces), **job.options},
                store=store.addresses,
                secret_key=None,
                job_id=carried.name,
            )
            # Whoever chose MPI to move the tensors keeps it: here there is one.
            if "HOROVOD_CPU_OPERATIONS" in inherited:
                environment["HOROVOD_CPU_OPERATIONS"] = inherited["HOROVOD_CPU_OPERATIONS"]
            line = start_line(
                make_order(job, external, environment, hosts, Path(folder), carried.card), external.launcher
            )
            limits = Limits(
                start_timeout_s(job.options, inherited),
                silence_s(job.options, inherited),
                failure_patience_s(job.options, inherited),
            )
            console.narrate(f"starting {shlex.join(line.words)}")
            workers = ExternalWorkers(
                job, hosts, external.launcher, line, store, carried.key, limits, console
            )
            try:
                outcome = supervise(
                    (),
                    workers,
                    signals,
                    console,
                    patience_s=limits.patience_s,
                    gone=tell_store(store),
                    size=job.processes,
                )
            finally:
                workers.close()
                if results is not None:
                    results.sent.update(workers.results)
                    # Any host of the job could have put them into the store.
                    if stays_here(hosts, external.launcher):
                        results.here.update(range(job.processes))
    raise_for(outcome, job.command[0], workers.tail)


def _make_store(carried: CarriedKey, hosts: Sequence[str]) -> StoreServer:
    try:
        return StoreServer(carried.key, bind_host=hosts, job=carried.name)
    except OSError as error:
        raise LaunchError(f"The ranks' store cannot be served on {join_hosts(hosts)}: {error}") from error
