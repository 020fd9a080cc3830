"""Common parts of the executors for elastic and for other jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.errors import ConfigError
from horovod.ray import checks

__all__ = ["Adapter", "BaseParams"]


@dataclass
class BaseParams:
    """Resources of each worker.

    Attributes:
        cpus_per_worker: CPUs of Ray.
        use_gpu: whether it has GPUs.
        gpus_per_worker: how many; None: one, if it has. Fractions are shares of one.

    Raises:
        ConfigError: a ``ValueError``: the numbers contradict each other.
    """

    cpus_per_worker: float = 1
    use_gpu: bool = False
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        checks.share("cpus_per_worker", self.cpus_per_worker)
        checks.share("gpus_per_worker", self.gpus_per_worker or 0)
        if self.gpus_per_worker is None:
            self.gpus_per_worker = 1 if self.use_gpu else 0
        elif self.gpus_per_worker and not self.use_gpu:
            raise ConfigError(
                f"gpus_per_worker={self.gpus_per_worker:g} means something with use_gpu=True only."
            )
        if self.use_gpu and not self.gpus_per_worker > 0:
            raise ConfigError(
                f"gpus_per_worker must be more than 0 with use_gpu=True, not {self.gpus_per_worker:g}: whole "
                "GPUs, or a share of one, as 0.5."
            )


class Adapter(ABC):
    """A job on Ray, from ``start`` to ``shutdown``. See :class:`horovod.ray.RayExecutor`."""

    @abstractmethod
    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Iterable[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Make everything ready for functions."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """``fn(*args, **kwargs)`` on every rank."""

    @abstractmethod
    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The same, without waiting: references."""

    @abstractmethod
    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None
    ) -> list[Any]:
        """``fn(executable)`` on every rank."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """``fn(executable)`` on rank 0."""

    @abstractmethod
    def shutdown(self) -> None:
        """Let everything go. Idempotent."""
