"""``RayExecutor``: functions in actors of a Ray cluster, as the ranks of one world."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from horovod.errors import ConfigError
from horovod.ray.adapter import Adapter, Callbacks
from horovod.ray.coordinator import Coordinator
from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams
from horovod.ray.nodes import require_ray
from horovod.ray.settings import MiniSettings, keep_identity
from horovod.ray.static import StaticAdapter, StaticParams
from horovod.ray.worker import BaseHorovodWorker

__all__ = [
    "BaseHorovodWorker",
    "Coordinator",
    "MiniSettings",
    "RayExecutor",
    "StaticAdapter",
    "StaticParams",
]


class RayExecutor:
    """Ranks of one world, as actors of Ray. A context manager: at its end the actors are gone.

    A job has a fixed number of ranks, ``num_workers`` or ``num_hosts`` times ``num_workers_per_host``; or
    with ``min_workers`` it is elastic: ranks come and go with the nodes of the cluster.

    Args:
        settings: those of :meth:`create_settings`.
        num_workers: how many ranks, close to each other.
        num_hosts: spread them over exactly so many nodes.
        num_workers_per_host: how many there are on each of those.
        cpus_per_worker: CPUs of Ray that each rank takes; ``cpus_per_slot`` means the same.
        use_gpu: each rank takes GPUs.
        gpus_per_worker: so many; by default 1. All ranks of a node see those of all of them, and
            choose by local rank.
        use_current_placement_group: stay inside that of the caller, if it has one, as a trial of Tune has.
        min_workers: elastic: ranks that the job begins with, and goes on with.
        max_workers: elastic: ranks that it grows to; by default as many as there is room for.
        reset_limit: elastic: changes of the world that are allowed; by default any number.
        cooldown_range: elastic: a slot whose worker has failed, or a node that was lost, is used again after
            so many seconds, from the first to the second number, longer each time; by default never.
        elastic_timeout: elastic: how many seconds enough room is waited for.
        override_discovery: elastic: look for nodes of Ray; False: ask ``settings.discovery``.

    Raises:
        ConfigError: a ``ValueError``: the numbers contradict each other.
    """

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
        *,
        cpus_per_slot: float | None = None,
    ) -> None:
        if not hasattr(settings, "timeout_s"):
            raise ConfigError(
                f"RayExecutor: settings are what RayExecutor.create_settings() returns, not {settings!r}."
            )
        self.settings = settings
        cpus = cpus_per_worker if cpus_per_slot is None else cpus_per_slot
        if max_workers is not None and not min_workers:
            raise ConfigError(
                "RayExecutor: max_workers means something in an elastic job only: give min_workers."
            )
        if min_workers is None:
            params = StaticParams(
                cpus_per_worker=cpus,
                use_gpu=use_gpu,
                gpus_per_worker=gpus_per_worker,
                num_workers=num_workers,
                num_hosts=num_hosts,
                num_workers_per_host=num_workers_per_host,
                use_current_placement_group=use_current_placement_group,
            )
            self.adapter: Adapter = StaticAdapter(params, settings)
            return
        if num_workers is not None or num_hosts is not None:
            raise ConfigError(
                "RayExecutor: num_workers and num_hosts are for jobs of a fixed size. An elastic one has "
                "min_workers and max_workers."
            )
        self.adapter = ElasticAdapter(
            ElasticParams(
                cpus_per_worker=cpus,
                use_gpu=use_gpu,
                gpus_per_worker=gpus_per_worker,
                min_workers=min_workers,
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=cooldown_range,
                elastic_timeout=elastic_timeout,
                override_discovery=override_discovery,
            ),
            settings,
        )

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Collection[str] | None = None,
        *,
        verbose: int = 1,
    ) -> MiniSettings:
        """Settings of an executor.

        Args:
            timeout_s: how many seconds actors may take to start, and ranks to find each other.
            placement_group_timeout_s: how many seconds Ray may take to make room for them.
            nics: names of the only network interfaces that ranks may use.
            verbose: 0: say nothing.
            ssh_identity_file, ssh_str: accepted; nothing is started by ssh. The text is written to the file,
                if there is none, for this user only.
        """
        keep_identity(ssh_identity_file, ssh_str)
        return MiniSettings(
            nics=nics,
            verbose=int(verbose),
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
        )

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Iterable[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Place the ranks, and tell them about each other. Not again before :meth:`shutdown`.

        Args:
            executable_cls: each rank makes one, which functions of :meth:`execute` are called with. Elastic:
                whenever a rank is started.
            executable_args, executable_kwargs: of ``executable_cls``.
            extra_env_vars: variables of the ranks, over all others.

        Raises:
            ConfigError: it was not said how many ranks there are.
            TimeoutError: Ray has no room for them.
            LaunchError: there is no Ray, an actor cannot be started, or the class cannot be pickled.
            ActorFailed: its constructor has failed on a rank.
        """
        require_ray("RayExecutor.start")
        self.adapter.start(executable_cls, executable_args, executable_kwargs, extra_env_vars)

    def run(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank; return the results by rank. An elastic job ends when
        any rank returns; the results are those of the ranks of the last world that have returned.

        Args:
            callbacks: each is called here with what ranks give to :func:`horovod.ray.ray_logger.log`.

        Raises:
            LaunchError: it is not started, or the call cannot be pickled.
            ActorFailed: a rank has failed, or its actor has died (a ``RuntimeError``); what still ran of the
                others was ended. Its cause is the exception of ``fn``, and the message ends with the
                traceback.
        """
        return self.adapter.run(fn, args, kwargs, callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """:meth:`run` without waiting: references to the results, by rank. Nobody ends the other ranks when
        one fails.

        Raises:
            NotImplementedError: the job is elastic.
        """
        return self.adapter.run_remote(fn, args, kwargs)

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Call ``fn(executable)`` on every rank, None if there is no ``executable_cls``. As :meth:`run`."""
        return self.adapter.execute(fn, callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0 only; return its result. As :meth:`run`.

        Raises:
            NotImplementedError: the job is elastic.
        """
        return self.adapter.execute_single(fn)

    def shutdown(self) -> None:
        """End the actors, and free what was reserved for them. Idempotent."""
        self.adapter.shutdown()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
