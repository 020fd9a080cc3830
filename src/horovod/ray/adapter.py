"""Common parts of the executors for elastic and for other jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.errors import ConfigError
from horovod.ray import checks
from horovod.ray.worker import RankCall

__all__ = ["Adapter", "BaseParams"]

Callbacks = Sequence[Callable[[Any], Any]]
Constructor = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A class, and its arguments."""


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

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Iterable[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Make everything ready for functions."""
        what, constructor = "RayExecutor.start", None
        if executable_cls is not None:
            checks.function(what, executable_cls)
            constructor = (executable_cls, *checks.arguments_of(what, executable_args, executable_kwargs))
        self._start(constructor, checks.texts(extra_env_vars))

    def run(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> list[Any]:
        """``fn(*args, **kwargs)`` on every rank."""
        return self._run(self._call("run", fn, args, kwargs), callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The same, without waiting: references."""
        return self._run_remote(self._call("run_remote", fn, args, kwargs))

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """``fn(executable)`` on every rank."""
        return self._run(self._call("execute", fn), callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """``fn(executable)`` on rank 0."""
        return self._run_single(self._call("execute_single", fn))

    @abstractmethod
    def shutdown(self) -> None:
        """Let everything go. Idempotent."""

    @abstractmethod
    def _start(self, constructor: Constructor | None, environment: dict[str, str]) -> None:
        """Make ready. ``constructor``: of the executables; ``environment``: of the ranks, over all others."""

    @abstractmethod
    def _require(self, what: str) -> None:
        """Raise LaunchError, or NotImplementedError, unless ``what`` can be asked for."""

    @abstractmethod
    def _run(self, call: RankCall, callbacks: Callbacks | None) -> list[Any]:
        """Results of all ranks."""

    def _run_remote(self, call: RankCall) -> list[Any]:
        """References to the results of all ranks."""
        raise NotImplementedError

    def _run_single(self, call: RankCall) -> Any:
        """Result of rank 0."""
        raise NotImplementedError

    def _call(
        self,
        what: str,
        fn: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RankCall:
        self._require(what)
        checks.function(f"RayExecutor.{what}", fn)
        arguments = checks.arguments_of(f"RayExecutor.{what}", args, kwargs)
        return RankCall(what, fn, *arguments, on_executable=what.startswith("execute"))
