"""The actor of a rank."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from horovod.bootstrap.place.store_address import SOCKET_VARIABLE
from horovod.bootstrap.store.membership import WORKER_VARIABLE
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.errors import InvalidArgumentError
from horovod.ray import ray_logger

__all__ = ["BaseHorovodWorker", "RankCall", "leave_outer_job"]

_OF_OTHERS = ("HOROVOD_ELASTIC", WORKER_VARIABLE, SOCKET_VARIABLE)


def leave_outer_job() -> None:
    """Forget what a job around the cluster has set: one of its ranks may have started Ray."""
    for name in _OF_OTHERS:
        os.environ.pop(name, None)


class BaseHorovodWorker:
    """One rank. An executor makes one actor of it for each.

    Args:
        world_rank: its rank.
        world_size: how many ranks there are.

    Attributes:
        executable: what functions of :meth:`execute` are called with; None until it is made.
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        leave_outer_job()
        self.update_env_vars(
            {
                "HOROVOD_HOSTNAME": self.node_id(),
                "HOROVOD_RANK": world_rank,
                "HOROVOD_SIZE": world_size,
            }
        )

    def node_id(self) -> str:
        """Of Ray's node, as hexadecimal digits."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Of the machine."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[Any]:
        """The GPUs that Ray has given to this actor."""
        return list(ray.get_gpu_ids())

    def update_env_vars(self, env_vars: Mapping[str, object]) -> None:
        """Set variables of the actor's process. Values become texts."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """All of them, but for the key of the job."""
        return {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Iterable[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the executable: ``executable_cls(*executable_args, **executable_kwargs)``."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Returns ``func(executable)``.

        Raises:
            InvalidArgumentError: it is a generator, of which Ray would take the first value, and run no more.
        """
        result = func(self.executable)
        if isinstance(result, Generator | AsyncGenerator):
            name = getattr(result, "__qualname__", "the function")
            raise InvalidArgumentError(
                f"{name} returned a generator, which has run nothing yet and cannot be sent. Return its "
                "values as a list; messages on the way go by horovod.ray.ray_logger.log()."
            )
        return result

    def set_queue(self, queue: Any) -> None:
        """Set the queue where :func:`horovod.ray.ray_logger.log` leaves messages; None: nowhere."""
        ray_logger.configure(queue)


@dataclass(frozen=True)
class RankCall:
    """A call that every rank makes, as a function of its executable.

    Attributes:
        what: the method that was asked for it, for messages.
        on_executable: ``fn`` is called with the executable, in place of arguments.
    """

    what: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    on_executable: bool = False

    def __call__(self, executable: Any) -> Any:
        return self.fn(executable) if self.on_executable else self.fn(*self.args, **self.kwargs)
