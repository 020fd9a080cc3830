"""Placement of a job's actors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.errors import ConfigError
from horovod.ray.failures import first_answers
from horovod.ray.nodes import describe_resources
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseStrategy", "ColocatedStrategy", "PGStrategy", "create_placement_group"]


def create_placement_group(
    resources_per_bundle: Mapping[str, float], num_bundles: int, pg_timeout: float, pg_strategy: str
) -> tuple[PlacementGroup, list[dict[str, float]]]:
    """Reserve ``num_bundles`` times the same resources.

    Args:
        pg_timeout: how many seconds to wait for them.
        pg_strategy: ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.

    Returns:
        The placement group, and its bundles.

    Raises:
        TimeoutError: there are not as many.
        ConfigError: they are none.
    """
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    if not any(each > 0 for each in resources_per_bundle.values()):
        raise ConfigError(
            f"Ray reserves CPUs or GPUs for workers: {_shown(resources_per_bundle)} is nothing."
        )
    group = ray.util.placement_group(bundles, strategy=pg_strategy)
    try:
        ready, _ = ray.wait([group.ready()], timeout=pg_timeout)
    except BaseException:  # Ctrl-C: else Ray would reserve it later, for nobody
        remove_placement_group(group)
        raise
    if not ready:
        remove_placement_group(group)
        each = " on a node of its own" if pg_strategy == "STRICT_SPREAD" else ""
        raise TimeoutError(
            f"The placement group was not there within {pg_timeout:g} s: {num_bundles} times "
            f"{_shown(resources_per_bundle)}{each} are requested; {describe_resources()}. Ask for fewer "
            "workers, end what holds the others, or wait longer: "
            "create_settings(placement_group_timeout_s=...)."
        )
    return group, bundles


class BaseStrategy(ABC):
    """Places actors, and lets them go."""

    placement_group: PlacementGroup | None = None
    _made: PlacementGroup | None = None
    _resources: Mapping[str, float]
    """Of one worker."""

    @abstractmethod
    def create_workers(self) -> tuple[list[Any], list[Any]]:
        """Begin to make the actors.

        Returns:
            One for each rank, in their order, and of them one for each host.

        Raises:
            TimeoutError: there is no room for them.
            LaunchError: one has died meanwhile.
        """

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Number of ranks."""

    def shutdown(self) -> None:
        """Remove the placement group, if it was made here. Idempotent."""
        if self._made is not None:
            remove_placement_group(self._made)
            self._made = self.placement_group = None

    @classmethod
    def get_node_workers(cls, workers: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """Of these actors one on each host; waits until they run, at most ``timeout`` seconds.

        Raises:
            TimeoutError: not all do by then; says which.
            LaunchError: one has died; says which.
        """
        names = first_answers(
            [worker.hostname.remote() for worker in workers],
            timeout,
            "Is there room for them in the placement group? create_settings(placement_group_timeout_s=...) "
            "waits longer.",
            limit_s=timeout,
        )
        first: dict[str, Any] = {}
        for name, worker in zip(names, workers, strict=True):
            first.setdefault(name, worker)
        return list(first.values())

    def _workers(self, bundles: Iterable[int]) -> list[Any]:
        """An actor in each of these bundles, -1: in any."""
        actor = ray.remote(BaseHorovodWorker)
        return [
            actor.options(
                num_cpus=self._resources["CPU"],
                num_gpus=self._resources.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self.placement_group,
                    placement_group_bundle_index=bundle,
                    placement_group_capture_child_tasks=False,
                ),
            ).remote(world_rank=rank, world_size=self.num_workers)
            for rank, bundle in enumerate(bundles)
        ]


class PGStrategy(BaseStrategy):
    """So many workers, close to each other: in the present placement group, else in one with a bundle each.

    Args:
        settings: a :class:`horovod.ray.runner.MiniSettings`.
        placement_group: use this one.
        force_create_placement_group: make one, even inside another.
    """

    def __init__(
        self,
        *,
        settings: Any,
        num_workers: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
        placement_group: PlacementGroup | None = None,
        force_create_placement_group: bool = False,
    ) -> None:
        self.settings = settings
        self._num_workers = num_workers
        self._resources = _resources(use_gpu, cpus_per_worker, gpus_per_worker)
        self.placement_group = placement_group
        if placement_group is None and not force_create_placement_group:
            self.placement_group = get_current_placement_group()

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        bundles = [-1] * self.num_workers
        if self.placement_group is None:
            self._made, made = create_placement_group(
                self._resources, self.num_workers, self.settings.placement_group_timeout_s, "PACK"
            )
            self.placement_group = self._made
            bundles = list(range(len(made)))
        workers = self._workers(bundles)
        try:
            return workers, self.get_node_workers(workers, self.settings.placement_group_timeout_s)
        except BaseException:  # who keeps the error would keep them
            for worker in workers:
                ray.kill(worker)
            raise


class ColocatedStrategy(BaseStrategy):
    """The same number of workers on each of so many nodes. Ranks are numbered node by node.

    Args:
        settings: a :class:`horovod.ray.runner.MiniSettings`.
    """

    def __init__(
        self,
        *,
        settings: Any,
        num_hosts: int,
        num_workers_per_host: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
    ) -> None:
        self.settings = settings
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self._resources = _resources(use_gpu, cpus_per_worker, gpus_per_worker)

    @property
    def num_workers(self) -> int:
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        whole = {name: each * self.num_workers_per_host for name, each in self._resources.items()}
        self._made, _ = create_placement_group(
            whole, self.num_hosts, self.settings.placement_group_timeout_s, "STRICT_SPREAD"
        )
        self.placement_group = self._made
        bundles = [host for host in range(self.num_hosts) for _ in range(self.num_workers_per_host)]
        workers = self._workers(bundles)
        return workers, workers[:: self.num_workers_per_host]


def _resources(use_gpu: bool, cpus: float, gpus: float | None) -> dict[str, float]:
    """Of one worker."""
    return {"CPU": cpus, **({"GPU": 1 if gpus is None else gpus} if use_gpu else {})}


def _shown(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{name} {each:g}" for name, each in resources.items())
