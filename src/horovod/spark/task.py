"""Spark task: the body that runs a host agent until the job is over, its machine, and its GPUs."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import BarrierTaskContext, TaskContext

from horovod.bootstrap.place.interpreter import as_here
from horovod.bootstrap.place.proc import boot_id, namespace, stat_of
from horovod.launch.contracts.tasks import Card
from horovod.launch.launchers.spark import DEVICES_VARIABLE
from horovod.launch.tasks.messages import Arrival
from horovod.launch.tasks.task import work

__all__ = ["TaskBody", "get_available_devices", "host_hash", "is_databricks", "machine"]

# Of the Python worker, and nobody else's.
_NOT_FOR_RANKS = frozenset({"PYTHON_WORKER_FACTORY_SECRET", "SPARK_REUSE_WORKER"})
_GPU = "gpu"


def machine() -> str:
    """Equal for processes that share a machine. Containers of YARN are machines of their own, though they may
    share a kernel."""
    spaces = [str(namespace(kind)) for kind in ("net", "pid")]
    return " ".join([boot_id(), socket.gethostname(), *spaces, os.environ.get("CONTAINER_ID", "")])


def host_hash(salt: str | None = None) -> str:
    """The name of this host and a digest of what tells it from others; ``salt`` gives others."""
    digest = hashlib.sha256(f"{machine()} {salt or ''}".encode()).hexdigest()[:16]
    return f"{socket.gethostname().partition('.')[0]}-{digest}"


def is_databricks() -> bool:
    """Return whether this process runs on Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


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


def get_available_devices() -> list[str]:
    """Addresses of the GPUs that Spark has assigned to the task of this rank
    (``spark.task.resource.gpu.amount``), as texts; empty if there are none.
    """
    return [address for address in os.environ.get(DEVICES_VARIABLE, "").split(",") if address]
