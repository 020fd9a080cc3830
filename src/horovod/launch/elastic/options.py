"""Settings of an elastic job, from options of ``horovodrun`` or arguments of ``horovod.run``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from horovod.config import value_of
from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job
from horovod.launch.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.launch.elastic.hosts import checked_cooldown
from horovod.launch.elastic.job import Elastic
from horovod.launch.elastic.rules import Rules
from horovod.launch.environment import rank_silence_s
from horovod.launch.options.values import ElasticOptions

__all__ = ["elastic_of"]

_DRIVER_WAIT_S = 600.0


def elastic_of(
    options: ElasticOptions,
    job: Job,
    inherited: Mapping[str, str],
    discovery: HostDiscovery | None = None,
    named: bool = False,
) -> Elastic:
    """Elastic settings for `job`.

    Args:
        options: what was asked for.
        job: its hosts are those of a job without discovery.
        inherited: the environment, for the time limit.
        discovery: asked in place of a script.
        named: the user has named the hosts of ``job``: with a discovery they are those at first.

    Raises:
        ConfigError: numbers that contradict each other.
    """
    fixed = discovery is None and options.host_discovery_script is None
    if options.host_discovery_script is not None:
        discovery = HostDiscoveryScript(options.host_discovery_script, options.slots_per_host)
    elif discovery is None:
        if options.slots_per_host is not None:
            raise ConfigError("--slots-per-host means something with --host-discovery-script only.")
        hosts = {host.name: host.slots for host in job.hosts} or {"localhost": job.processes}
        discovery = FixedHosts(hosts)
    rules = Rules(
        processes=job.processes,
        least=job.processes if options.min_num_proc is None else options.min_num_proc,
        most=options.max_num_proc,
        slots_wait_s=value_of("elastic_timeout_s", {**inherited, **job.options}),
        reset_limit=options.reset_limit,
        cooldown_s=checked_cooldown(options.blacklist_cooldown_range),
        spares=options.spares or 0,
        by_slot=None if options.failure_domain is None else options.failure_domain == "slot",
        fixed_hosts=fixed,
        lost_s=rank_silence_s(job.options, inherited) or math.inf,
    )
    events = None if options.elastic_events is None else Path(options.elastic_events)
    if options.driver_wait is not None and options.state is None:
        raise ConfigError("--driver-wait means something with --state only.")
    state = None if options.state is None else Path(options.state).absolute()
    wait_s = _DRIVER_WAIT_S if options.driver_wait is None else options.driver_wait
    at_first = None if fixed or not named else {host.name: host.slots for host in job.hosts}
    return Elastic(rules, discovery, events, state, wait_s if state is not None else 0.0, at_first)
