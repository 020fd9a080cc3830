"""Settings of an elastic job, from options of ``horovodrun`` or arguments of ``horovod.run``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.config import value_of
from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job
from horovod.launch.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.launch.elastic.hosts import checked_cooldown
from horovod.launch.elastic.job import Elastic
from horovod.launch.elastic.rules import Rules
from horovod.launch.environment import rank_silence_s

__all__ = ["Wishes", "elastic_of"]

_DRIVER_WAIT_S = 600.0


class Wishes(NamedTuple):
    """As given; None: not given. The names are those of the options."""

    min_num_proc: int | None = None
    max_num_proc: int | None = None
    host_discovery_script: str | None = None
    slots_per_host: int | None = None
    reset_limit: int | None = None
    blacklist_cooldown_range: Sequence[float] | None = None
    failure_domain: str | None = None
    spares: int | None = None
    elastic_events: str | None = None
    state: str | None = None
    driver_wait: float | None = None


def elastic_of(
    wishes: Wishes,
    job: Job,
    inherited: Mapping[str, str],
    discovery: HostDiscovery | None = None,
    named: bool = False,
) -> Elastic:
    """Elastic settings for `job`.

    Args:
        wishes: what was asked for.
        job: its hosts are those of a job without discovery.
        inherited: the environment, for the time limit.
        discovery: asked in place of a script.
        named: the user has named the hosts of ``job``: with a discovery they are those at first.

    Raises:
        ConfigError: numbers that contradict each other.
    """
    fixed = discovery is None and wishes.host_discovery_script is None
    if wishes.host_discovery_script is not None:
        discovery = HostDiscoveryScript(wishes.host_discovery_script, wishes.slots_per_host)
    elif discovery is None:
        if wishes.slots_per_host is not None:
            raise ConfigError("--slots-per-host means something with --host-discovery-script only.")
        hosts = {host.name: host.slots for host in job.hosts} or {"localhost": job.processes}
        discovery = FixedHosts(hosts)
    rules = Rules(
        processes=job.processes,
        least=job.processes if wishes.min_num_proc is None else wishes.min_num_proc,
        most=wishes.max_num_proc,
        slots_wait_s=value_of("elastic_timeout_s", {**inherited, **job.options}),
        reset_limit=wishes.reset_limit,
        cooldown_s=checked_cooldown(wishes.blacklist_cooldown_range),
        spares=wishes.spares or 0,
        by_slot=None if wishes.failure_domain is None else wishes.failure_domain == "slot",
        fixed_hosts=fixed,
        lost_s=rank_silence_s(job.options, inherited) or math.inf,
    )
    events = None if wishes.elastic_events is None else Path(wishes.elastic_events)
    if wishes.driver_wait is not None and wishes.state is None:
        raise ConfigError("--driver-wait means something with --state only.")
    state = None if wishes.state is None else Path(wishes.state).absolute()
    wait_s = _DRIVER_WAIT_S if wishes.driver_wait is None else wishes.driver_wait
    at_first = None if fixed or not named else {host.name: host.slots for host in job.hosts}
    return Elastic(rules, discovery, events, state, wait_s if state is not None else 0.0, at_first)
