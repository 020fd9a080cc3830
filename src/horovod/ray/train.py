"""Ray Train: a trainer whose workers are the ranks of one world, and the backend that makes them so.

``from horovod.ray.train import HorovodTrainer`` takes the place of ``from ray.train.horovod import
HorovodTrainer``, which the present Ray Train (V2) refuses. It works with that one and with the former one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import ray
import ray.train
from ray.exceptions import GetTimeoutError
from ray.train.backend import Backend, BackendConfig

from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.ray import checks
from horovod.ray.coordinator import Coordinator, forwarded
from horovod.ray.failures import check_picklable, late
from horovod.ray.nodes import describe_resources
from horovod.ray.settings import MiniSettings, keep_identity
from horovod.ray.worker import BaseHorovodWorker
from horovod.runtime import lifecycle

# Ray decides once, when it is imported: `RAY_TRAIN_V2_ENABLED`.
if "UserCallback" in ray.train.__all__:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
else:
    from ray.train.data_parallel_trainer import DataParallelTrainer

__all__ = ["HorovodConfig", "HorovodTrainer"]


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


class HorovodTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Calls a function on every worker of Ray Train, as the ranks of one world. The function calls
    ``hvd.init()``, and what ``ray.train`` has: ``report`` on every rank, ``get_dataset_shard``,
    ``get_checkpoint``.

    Args:
        train_loop_per_worker: the function; it takes nothing, or ``train_loop_config``.
        train_loop_config: what it is called with.
        horovod_config: how ranks meet.
        scaling_config: how many workers there are, and what each has.
        dataset_config: how ``datasets`` are divided.
        run_config: where results are kept, and how often a run may begin again from its last checkpoint.
        datasets: by name; "train" is divided among ranks.
        more: further arguments of Ray's ``DataParallelTrainer``.

    ``fit()`` returns Ray's ``Result``: the metrics of rank 0, and the last checkpoint.

    Raises:
        LaunchError: the function or its config cannot be pickled; says which part.
        ray.train.TrainingFailedError: from ``fit()``: a rank has failed, or its worker has died. It names the
            rank, and has the traceback.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        scaling_config: Any = None,
        dataset_config: Any = None,
        run_config: Any = None,
        datasets: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        check_picklable(
            "HorovodTrainer", train_loop_per_worker, () if train_loop_config is None else (train_loop_config,)
        )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=horovod_config or HorovodConfig(),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            **more,
        )
