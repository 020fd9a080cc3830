"""Elastic training with PyTorch: ``hvd.elastic.run`` around a function of a ``hvd.elastic.TorchState``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.elastic.run import run_fn
from horovod.torch.elastic.random_state import RandomState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "RandomState", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for ``func(state, ...)``: after ``HorovodInternalError`` it is called again in a new world,
    with the state of the last commit; after ``HostsUpdatedInterrupt`` with the state as it is.

    No collective may be called between ``init()`` and the decorated function: processes that join later run
    that part alone.

    Works in a job that is not elastic as well: the world is formed again by the same processes.
    """
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
