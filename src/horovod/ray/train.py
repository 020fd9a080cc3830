"""Ray Train: a trainer whose workers are the ranks of one world.

``from horovod.ray.train import HorovodTrainer`` takes the place of ``from ray.train.horovod import
HorovodTrainer``, which the present Ray Train (V2) refuses. It works with that one and with the former one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray.train

from horovod.ray.failures import check_picklable
from horovod.ray.train_backend import HorovodConfig

# Ray decides once, when it is imported: `RAY_TRAIN_V2_ENABLED`.
if "UserCallback" in ray.train.__all__:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
else:
    from ray.train.data_parallel_trainer import DataParallelTrainer

__all__ = ["HorovodConfig", "HorovodTrainer"]


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
