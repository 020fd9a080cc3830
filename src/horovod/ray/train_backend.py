"""The backend that makes the workers of a trainer of Ray Train the ranks of one world."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import ray
from ray.exceptions import GetTimeoutError
from ray.train.backend import Backend, BackendConfig

from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.ray import checks
from horovod.ray.coordinator import Coordinator, forwarded
from horovod.ray.failures import late
from horovod.ray.nodes import describe_resources
from horovod.ray.settings import MiniSettings, keep_identity
from horovod.ray.worker import BaseHorovodWorker
from horovod.runtime import lifecycle

__all__ = ["HorovodConfig"]


@dataclass
class HorovodConfig(MiniSettings, BackendConfig):  # type: ignore[misc]
    """The backend of a trainer of Ray Train: its workers are the ranks of one world. For
    :class:`horovod.ray.train.HorovodTrainer`, or any other trainer with a ``backend_config``.

    Attributes:
        timeout_s: how many seconds workers may take to answer, and ranks to find each other.
        placement_group_timeout_s: accepted; Ray Train waits for room as its own settings say.
        ssh_str: accepted, as the rest about ssh; nothing is started by it.
        env_vars: variables of the ranks, over all others. Those of the process that makes this object, as far
            as they are ``HOROVOD_...`` or ``NCCL_...``, reach the ranks, too.
    """

    ssh_str: str | None = field(default=None, repr=False)
    env_vars: Mapping[str, Any] | None = field(default=None, repr=False)
    inherited: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_identity(self.ssh_identity_file, self.ssh_str)
        checks.texts(self.env_vars)
        self.inherited = forwarded(os.environ)
        self.inherited.pop(SECRET_VARIABLE, None)  # each start makes a key of its own

    @property
    def backend_cls(self) -> type[Any]:
        """For Ray."""
        return _HorovodBackend

    @property
    def train_func_context(self) -> type[Any]:
        """For Ray: in it each worker calls the training function."""
        return _UntilItReturns


class _HorovodBackend(Backend):  # type: ignore[misc]
    """There is one in a process, also if that has several groups of workers."""

    share_cuda_visible_devices = True
    """All ranks of a node see the GPUs of all of them, and choose by local rank."""

    def __init__(self) -> None:
        self._meeting_points: WeakKeyDictionary[Any, Coordinator] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Any], tuple[()]]:
        return type(self), ()  # where Ray sends it, nobody meets yet

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Tell the workers who they are, and where they meet.

        Raises:
            TimeoutError: not all answer; says which.
        """
        ranks = range(len(worker_group))
        limit = backend_config.start_timeout

        def answers(references: list[Any]) -> list[Any]:
            try:
                return list(ray.get(references, timeout=limit.remaining()))
            except GetTimeoutError:
                raise TimeoutError(
                    f"Not all of {len(references)} workers of Ray Train answer after "
                    f"{backend_config.timeout_s:g} s (missing: {late(references)}); {describe_resources()}. "
                    "If importing takes longer: HorovodConfig(timeout_s=...)."
                ) from None

        self._meeting_points[worker_group] = coordinator = Coordinator(backend_config)
        try:
            found = answers(
                [worker_group.execute_single_async(rank, _be_rank, rank, len(ranks)) for rank in ranks]
            )
            for rank, (hostname, node_id) in zip(ranks, found, strict=True):
                coordinator.register(hostname, node_id, rank)
            places = coordinator.finalize_registration()
            shared = coordinator.establish_rendezvous(backend_config.inherited)
            given = checks.texts(backend_config.env_vars)
            answers(
                [
                    worker_group.execute_single_async(rank, _be_told, {**shared, **places[rank], **given})
                    for rank in ranks
                ]
            )
        except BaseException:
            self.on_shutdown(worker_group, backend_config)
            worker_group.shutdown()  # Ray itself would keep its workers as long as the script runs
            raise

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Nobody meets there any more."""
        coordinator = self._meeting_points.pop(worker_group, None)
        if coordinator is not None:
            coordinator.close()


class _UntilItReturns:
    """A rank whose function has returned has left the world: others that wait for it hear of that. If it has
    raised, Ray ends the others.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            lifecycle.stop()


def _be_rank(rank: int, size: int) -> tuple[str, str]:
    """Runs in a worker, as all that follows. Says where it is."""
    made = BaseHorovodWorker(rank, size)
    return made.hostname(), made.node_id()


def _be_told(variables: Mapping[str, object]) -> None:
    os.environ.update({name: str(value) for name, value in variables.items()})
