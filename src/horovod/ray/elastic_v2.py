"""Elastic jobs: ranks come and go with the nodes of the cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.errors import ConfigError, LaunchError
from horovod.launch.calls.functions import explained, interface_names, pack_call, result_of
from horovod.launch.calls.pickles import why_unpicklable
from horovod.launch.calls.plain import is_plain, unpack_plain
from horovod.launch.contracts.job import Job, RankResults
from horovod.launch.elastic.discovery import HostDiscovery
from horovod.launch.elastic.job import run_elastic_job
from horovod.launch.elastic.options import elastic_of
from horovod.launch.options.values import ElasticOptions
from horovod.launch.output.console import Console
from horovod.ray import checks
from horovod.ray.adapter import Adapter, BaseParams, Callbacks, Constructor
from horovod.ray.coordinator import forwarded
from horovod.ray.fleet import ActorFleet, Wanted
from horovod.ray.messages import listening_beside
from horovod.ray.nodes import NodeNames, RayHostDiscovery, TestDiscovery, describe_resources, require_ray
from horovod.ray.worker import RankCall

__all__ = ["ElasticAdapter", "ElasticParams", "RayHostDiscovery", "TestDiscovery"]

_LOOK_S = 1.0
_ALL_STEPS = 2
_FROM_AND_TO = 2


@dataclass
class ElasticParams(BaseParams):
    """Limits for the number of ranks, and how it may change.

    Attributes:
        min_workers: ranks that the job begins with, and goes on with.
        max_workers: ranks that it grows to; None: as many as there is room for.
        reset_limit: changes of the world that are allowed; None: any number.
        cooldown_range: for how many seconds a slot whose worker has failed is left out, from and to; None:
            for ever.
        elastic_timeout: how many seconds enough room is waited for.
        override_discovery: look for nodes of Ray; False: ask ``settings.discovery``.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[float] | None = None
    elastic_timeout: float = 600
    override_discovery: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cpus_per_worker and not self.gpus:
            raise ConfigError(
                "Workers of an elastic job need CPUs or GPUs: with cpus_per_worker=0 nothing limits them."
            )
        checks.count("min_workers", self.min_workers)
        if self.reset_limit is not None:
            checks.count("reset_limit", self.reset_limit, least=0)
        checks.seconds("elastic_timeout", self.elastic_timeout)
        cooldown = self.cooldown_range
        if cooldown is not None:
            if not isinstance(cooldown, Sequence) or len(cooldown) != _FROM_AND_TO:
                raise ConfigError(f"cooldown_range is two numbers of seconds, as (10, 60), not {cooldown!r}.")
            checks.seconds("cooldown_range[0]", cooldown[0])
            checks.seconds("cooldown_range[1]", cooldown[1], least=cooldown[0])
        if (
            self.max_workers is not None
            and checks.count("max_workers", self.max_workers, least=0) < self.min_workers
        ):
            raise ConfigError(f"max_workers={self.max_workers} is less than min_workers={self.min_workers}.")

    @property
    def gpus(self) -> float:
        """Of each rank."""
        return self.gpus_per_worker or 0


class ElasticAdapter(Adapter):
    """Each worker is an actor of its own, which ends with it. They are started by ``run`` and ``execute``.

    Args:
        settings: a :class:`horovod.ray.runner.MiniSettings`.
    """

    def __init__(self, params: ElasticParams, settings: Any) -> None:
        self.params = params
        self.settings = settings
        self.settings.elastic = True
        self._discovery: HostDiscovery | None = None
        self._constructor: Constructor | None = None
        self._environment: dict[str, str] = {}

    def _start(self, constructor: Constructor | None, environment: dict[str, str]) -> None:
        discovery = self._find_discovery()
        self._constructor, self._environment = constructor, environment
        until = time.monotonic() + self.params.elastic_timeout
        while (found := sum(discovery.find_available_hosts_and_slots().values())) < self.params.min_workers:
            if time.monotonic() >= until:
                raise TimeoutError(
                    f"There is room for {found} workers after {self.params.elastic_timeout:g} s, and "
                    f"min_workers is {self.params.min_workers}: {describe_resources()}. Ask for fewer, add "
                    "nodes, or wait longer: elastic_timeout."
                )
            time.sleep(_LOOK_S)  # nodes of Ray come without a word
        self._discovery = discovery

    def shutdown(self) -> None:
        """Nothing runs between calls."""
        self._discovery = None

    def _find_discovery(self) -> HostDiscovery:
        if self.params.override_discovery:
            return RayHostDiscovery(self.params.use_gpu, self.params.cpus_per_worker, self.params.gpus or 1)
        given = getattr(self.settings, "discovery", None)
        if given is None:
            raise ConfigError(
                "override_discovery=False: settings.discovery says which hosts there are, so set it."
            )
        found: HostDiscovery = given
        return found

    def _require(self, what: str) -> None:
        if what == "run_remote":
            raise NotImplementedError(
                "RayExecutor.run_remote: an elastic job has no fixed ranks to refer to. Call run()."
            )
        if what == "execute_single":
            raise NotImplementedError(
                "RayExecutor.execute_single: the actors of an elastic job end with their call. Call "
                "execute()."
            )
        require_ray(f"RayExecutor.{what}")
        if self._discovery is None:
            raise LaunchError(f"RayExecutor.{what}: it is not started. Call start() before {what}().")

    def _run(self, call: RankCall, callbacks: Callbacks | None) -> list[Any]:
        """Run a job whose workers make ``call`` with their executable."""
        what, discovery = f"RayExecutor.{call.what}", self._discovery
        assert discovery is not None
        try:
            data = pack_call(_with_executable, (self._constructor, call), {})
        except Exception as error:
            raise LaunchError(f"{what}: {why_unpicklable(call.fn, call.args, call.kwargs, error)}") from error
        job = Job(
            command=(what,),
            processes=self.params.min_workers,
            launcher="ray",
            options={
                "HOROVOD_START_TIMEOUT": f"{self.settings.timeout_s:g}",
                "HOROVOD_ELASTIC_TIMEOUT": f"{self.params.elastic_timeout:g}",
            },
            interfaces=interface_names(self.settings.nics),
            status=False,
            call=data,
        )
        options = ElasticOptions(
            min_num_proc=self.params.min_workers,
            max_num_proc=self.params.max_workers,
            reset_limit=self.params.reset_limit,
            blacklist_cooldown_range=self.params.cooldown_range,
            failure_domain="slot",  # a node with many GPUs does without the one whose actor has died
        )
        inherited = forwarded(os.environ)
        how = elastic_of(options, job, inherited, discovery)
        names = discovery.names if isinstance(discovery, RayHostDiscovery) else NodeNames()
        console = Console(verbose=self.settings.verbose >= _ALL_STEPS, words=sys.stderr)
        results = RankResults()
        with listening_beside(callbacks) as queue, explained(results, unpickle_results=True):
            wanted = Wanted(self.params.cpus_per_worker, self.params.gpus, self._environment, queue)
            run_elastic_job(
                job, how, inherited, console, results,
                make=lambda request, plan, output, store: ActorFleet(
                    request, plan, output, names=names, wanted=wanted
                ),
            )  # fmt: skip
        # What actors return is unpickled on the driver anyway, by Ray.
        return [result_of(results.sent[rank], rank, trusted=True) for rank in _returned(results.sent)]


def _returned(sent: Mapping[int, bytearray]) -> list[int]:
    """The ranks that have results, of a job that has succeeded. It ends when one returns: others that still
    trained were dismissed, by an exception that they have sent home, or ended.
    """
    ranks = [rank for rank, data in sorted(sent.items()) if data and not _is_failure(memoryview(data))]
    return ranks or sorted(sent)  # reading the first says what is wrong


def _is_failure(data: memoryview) -> bool:
    return is_plain(data) and unpack_plain(data)[0] is False


def _with_executable(constructor: Constructor | None, call: RankCall) -> Any:
    """Make the executable, None if there is none to be made, and the call with it."""
    if constructor is None:
        return call(None)
    make, args, kwargs = constructor
    return call(make(*args, **kwargs))
