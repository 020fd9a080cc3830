"""Body of a Spark task: it reports its host, and runs a host agent until the job is over."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import BarrierTaskContext, TaskContext

from horovod.bootstrap.place.interpreter import as_here
from horovod.bootstrap.place.proc import stat_of
from horovod.launch.contracts.tasks import Card
from horovod.launch.tasks.messages import Arrival
from horovod.launch.tasks.task import work
from horovod.spark.common.host import machine

__all__ = ["TaskBody"]

# Of the Python worker, and nobody else's.
_NOT_FOR_RANKS = frozenset({"PYTHON_WORKER_FACTORY_SECRET", "SPARK_REUSE_WORKER"})
_GPU = "gpu"


class TaskBody:
    """A function of an index and its partition, for ``mapPartitionsWithIndex``; of a barrier stage, too.

    Args:
        card: of the job.
        call: what ranks read, or a broadcast variable of that; empty: nothing.
    """

    def __init__(self, card: Card, call: Any) -> None:
        self._card = card
        self._call = call

    def __call__(self, index: int, _: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get() or BarrierTaskContext.get()
        assert context is not None
        call = self._call if isinstance(self._call, bytes) else self._call.value
        environ = _environ(os.environ, self._card.without, context.cpus())
        work(self._card, _arrival(index, context), [memoryview(call)] if call else [], environ)
        return iter(())


def _arrival(index: int, context: Any) -> Arrival:
    resources = context.resources()
    return Arrival(
        task=f"t{context.taskAttemptId()}",
        index=index,
        attempt=context.attemptNumber(),
        host=socket.gethostname(),
        machine=machine(),
        worker=_executor(),
        gpus=tuple(map(str, resources[_GPU].addresses)) if _GPU in resources else (),
        directory=os.getcwd(),
        python=sys.executable,
    )


def _environ(environ: Mapping[str, str], without: Sequence[str], cpus: int) -> dict[str, str]:
    """For ranks: they import what tasks can import."""
    dropped = _NOT_FOR_RANKS.union(without)
    kept = {name: value for name, value in environ.items() if name not in dropped}
    if "OMP_NUM_THREADS" not in dropped:
        kept.setdefault("OMP_NUM_THREADS", str(cpus))
    if "PYTHONPATH" not in dropped:
        kept = as_here(kept)
    return kept


def _executor() -> str:
    """Return the id of this worker's executor, from the command line of the Java process above this one."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            break
        if b"--executor-id" in words[:-1]:
            return f"executor {words[words.index(b'--executor-id') + 1].decode(errors='replace')}"
        above = stat_of(pid)
        if above is None:
            break
        pid = above.parent
    return "executor driver"
