"""A strategy for the ``Trainer`` of Lightning 2, over ``horovod.torch``.

    import horovod.torch as hvd
    from horovod.spark.lightning import HorovodStrategy

    hvd.init()
    trainer = Trainer(strategy=HorovodStrategy(), devices=1, accelerator="cpu")

Each process trains on one device. Processes are started by a launcher of this package, not by Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch

import horovod.torch as hvd

__all__ = ["strategy_class"]


class _Environment:
    """Place of this process in the world, as Lightning asks for it."""

    creates_processes_externally = True
    main_address = ""
    main_port = 0

    @staticmethod
    def detect() -> bool:
        return bool(hvd.is_initialized())

    def world_size(self) -> int:
        return int(hvd.size())

    def global_rank(self) -> int:
        return int(hvd.rank())

    def local_rank(self) -> int:
        return int(hvd.local_rank())

    def node_rank(self) -> int:
        return int(hvd.cross_rank())

    def set_world_size(self, size: int) -> None:
        """The launcher has decided it."""

    def set_global_rank(self, rank: int) -> None:
        """The launcher has decided it."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """One device for each process."""
        if num_devices != 1:
            raise ValueError(
                f"HorovodStrategy: each process has one device, not {num_devices}: set devices=1."
            )

    def teardown(self) -> None:
        """Nothing was begun."""


class _Horovod:
    """Methods of ``HorovodStrategy``; :func:`strategy_class` adds Lightning's base class.

    Args:
        compression: one of ``hvd.Compression``, for gradients.
        scale_learning_rate: multiply learning rates by the number of processes.
    """

    _environment_class: Any
    _rank_zero_only: Any

    def __init__(self, compression: Any = None, scale_learning_rate: bool = False, **options: Any) -> None:
        super().__init__(cluster_environment=self._environment_class(), **options)  # type: ignore[call-arg]
        self._compression = compression or hvd.Compression.none
        self._scale = hvd.size() if scale_learning_rate else 1
        self._pairs: list[tuple[Any, Any]] = []
        self._accumulating = False
        self._skipped = ExitStack()

    # -- where this process is ------------------------------------------------------------------------------

    @property
    def is_distributed(self) -> bool:
        return True

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0]  # type: ignore[attr-defined, no-any-return]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    def set_world_ranks(self) -> None:
        """Let Lightning print and log on rank 0 alone."""
        self._rank_zero_only.rank = hvd.rank()

    # -- between processes ----------------------------------------------------------------------------------

    def barrier(self, name: str | None = None) -> None:
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, src, name="lightning.broadcast")

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """A tensor, reduced over all ranks; anything else as it is."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        sums = str(reduce_op).rpartition(".")[2].lower() == "sum"
        if not sums and not tensor.is_floating_point():
            tensor = tensor.float()
        return hvd.allreduce(tensor, op=hvd.Sum if sums else hvd.Average)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """``[size, *shape]``."""
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            gathered: torch.Tensor = hvd.allgather(tensor.unsqueeze(0))
            return gathered

    # -- training -------------------------------------------------------------------------------------------

    def setup(self, trainer: Any) -> None:
        """Make all ranks start from rank 0's model, and let optimizers exchange gradients."""
        this: Any = self
        super().setup(trainer)  # type: ignore[misc]
        hvd.broadcast_parameters(this.lightning_module.state_dict(), root_rank=0)
        if trainer.state.fn == "fit" and not self._pairs:
            this.optimizers = [self._distributed(optimizer) for optimizer in this.optimizers]
            for scheduler in [each.scheduler for each in this.lr_scheduler_configs]:
                if hasattr(scheduler, "base_lrs"):
                    scheduler.base_lrs = [rate * self._scale for rate in scheduler.base_lrs]

    def _distributed(self, optimizer: Any) -> Any:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self._scale
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        named = self.lightning_module.named_parameters()  # type: ignore[attr-defined]
        wrapped = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(name, parameter) for name, parameter in named if id(parameter) in mine],
            compression=self._compression,
        )
        # The exchange ends with backward(): what Lightning does before the step, such as clipping, sees it.
        self._skipped.enter_context(wrapped.skip_synchronize())
        self._pairs.append((optimizer, wrapped))
        return wrapped

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        super().load_optimizer_state_dict(checkpoint)  # type: ignore[misc]
        for original, wrapped in self._pairs:
            original.param_groups = wrapped.param_groups  # which learning rate schedulers change

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gradients within are added up, for a later batch to exchange."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def pre_backward(self, closure_loss: Any) -> None:
        passes = self.lightning_module.trainer.accumulate_grad_batches  # type: ignore[attr-defined]
        for _, optimizer in self._pairs:
            if optimizer.backward_passes_per_step != passes:
                optimizer.set_backward_passes_per_step(passes)

    def post_backward(self, closure_loss: Any) -> None:
        if not self._accumulating:
            for _, optimizer in self._pairs:
                optimizer.synchronize()

    def model_to_device(self) -> None:
        this: Any = self
        this.model.to(self.root_device)

    def teardown(self) -> None:
        self._skipped.close()
        self._pairs.clear()
        super().teardown()  # type: ignore[misc]


def strategy_class(pl: Any) -> Any:
    """``HorovodStrategy`` for one of the two packages of Lightning."""
    environments = import_module(f"{pl.__name__}.plugins.environments")
    environment = type("HorovodEnvironment", (_Environment, environments.ClusterEnvironment), {})
    attributes = {
        "__doc__": _Horovod.__doc__,
        "__module__": __name__,
        "_environment_class": environment,
        "_rank_zero_only": staticmethod(pl.utilities.rank_zero.rank_zero_only),
    }
    return type("HorovodStrategy", (_Horovod, pl.strategies.ParallelStrategy), attributes)
