"""``ElasticRayExecutor``, the former interface to elastic jobs: `RayExecutor` with ``min_workers`` has taken
its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from horovod.errors import ConfigError, deprecated
from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams
from horovod.ray.nodes import RayHostDiscovery, TestDiscovery, require_ray
from horovod.ray.settings import ElasticSettings, keep_identity

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]


class ElasticRayExecutor:
    """Elastic jobs on Ray. Deprecated: ``RayExecutor(settings, min_workers=...)`` does the same.

    Args:
        settings: those of :meth:`create_settings`.
        use_gpu: each rank takes GPUs.
        cpus_per_slot: CPUs of each rank.
        gpus_per_slot: GPUs of each rank; by default 1.
        env_vars: variables of the ranks, over all others.
        override_discovery: look for nodes of Ray; False: ask ``settings.discovery``.

    Raises:
        ConfigError: a ``ValueError``: the numbers contradict each other.
    """

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        deprecated("ElasticRayExecutor is deprecated: use RayExecutor(settings, min_workers=...).")
        self.settings = settings
        self._env_vars = dict(env_vars or {})
        params = ElasticParams(
            cpus_per_worker=cpus_per_slot,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit,
            elastic_timeout=settings.elastic_timeout,
            override_discovery=override_discovery,
        )
        self._adapter = ElasticAdapter(params, settings)

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Collection[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Settings of an executor.

        Args:
            min_num_proc, max_num_proc, reset_limit, elastic_timeout: see :class:`RayExecutor`.
            timeout_s: how many seconds actors may take to start, and ranks to find each other.
            ssh_identity_file: accepted; nothing is started by ssh.
            nics: names of the only network interfaces that ranks may use.
            min_np, max_np: old names.
            kwargs: further attributes of :class:`horovod.ray.settings.ElasticSettings`, as ``verbose``.

        Raises:
            ConfigError: there is no such attribute.
        """
        if min_np is not None:
            deprecated("ElasticRayExecutor.create_settings: min_np is deprecated: use min_num_proc.")
            min_num_proc = min_np
        if max_np is not None:
            deprecated("ElasticRayExecutor.create_settings: max_np is deprecated: use max_num_proc.")
            max_num_proc = max_np
        keep_identity(ssh_identity_file, kwargs.pop("ssh_str", None))
        unknown = sorted(set(kwargs) - {each.name for each in fields(ElasticSettings)})
        if unknown:
            raise ConfigError(
                f"ElasticRayExecutor.create_settings: there is no setting {', '.join(unknown)}."
            )
        return ElasticSettings(
            min_num_proc=min_num_proc,
            max_num_proc=max_num_proc,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            timeout_s=timeout_s,
            ssh_identity_file=ssh_identity_file,
            nics=nics,
            **kwargs,
        )

    def start(self) -> None:
        """Wait for enough room.

        Raises:
            TimeoutError: there is too little for too long.
            LaunchError: there is no Ray.
        """
        require_ray("ElasticRayExecutor.start")
        self._adapter.start(extra_env_vars=self._env_vars)

    def run(
        self, worker_fn: Callable[[], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None
    ) -> list[Any]:
        """Call ``worker_fn()`` on every rank: see :meth:`horovod.ray.RayExecutor.run`."""
        return self._adapter.run(worker_fn, callbacks=callbacks)
