"""A Spark job whose tasks work for one job of ranks, and the SparkContext of this process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark import InheritableThread, SparkContext

from horovod.bootstrap.trust import unix
from horovod.errors import LaunchError
from horovod.launch.contracts.tasks import Card
from horovod.launch.elastic.discovery import FixedHosts
from horovod.launch.phrases import counted
from horovod.launch.placement.addresses import names_of_this_machine, store_hosts
from horovod.spark.task import TaskBody
from horovod.wordings import TASKS_DID_NOT_START

__all__ = ["SparkTasks", "active_context", "free_slots", "has_fixed_slots", "is_one_machine"]

_BROADCAST_BYTES = 256 << 10
_ASK_S = 0.25  # between two looks at the slots that there are
_PATIENT_S = 5.0  # who waits longer for slots is told why
_CLOSE_S = 20.0
_SAY_S = 2.0  # how long Spark may take to say why a task failed
_LOOK_S = 0.1
_NO_HOROVOD = "ModuleNotFoundError: No module named 'horovod'"
_numbers = itertools.count()


def active_context(who: str) -> Any:
    """The active SparkContext. ``who``: needs it, in the message.

    Raises:
        LaunchError: there is none.
    """
    context: Any = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        raise LaunchError(
            f"{who} needs a running SparkContext, and this process has none. Make one first: "
            "SparkSession.builder.getOrCreate(). A session of Spark Connect has no SparkContext: run this "
            "where the driver runs."
        )
    return context


def has_fixed_slots(context: Any) -> bool:
    """Return whether no executors can join: with ``local[...]`` the driver is the only one."""
    return str(context.master) == "local" or str(context.master).startswith("local[")


def is_one_machine(context: Any) -> bool:
    """Return whether all executors are on the driver's machine: ``local[...]`` and ``local-cluster[...]``."""
    return str(context.master).startswith("local")


def free_slots(context: Any) -> int | None:
    """Count the tasks that the present executors can run at the same time; None: Spark does not say. Tasks of
    other jobs are not subtracted.
    """
    try:
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))
    except Exception:  # no public interface: another release may not have it
        return None


class SparkTasks:
    """A `TaskSource` of Spark tasks. Its tasks are one job group, which can be cancelled.

    Args:
        context: the SparkContext.
        count: how many tasks.
        barrier: all start together, as tasks of a barrier stage; else one by one.
        what: what the group is called: ``horovod.spark.run``.
        tell: is told in a sentence what is waited for.
        logged, without, own_gpus, executable: see `TaskSource`.
    """

    name = "Spark"

    def __init__(
        self,
        context: Any,
        count: int,
        *,
        barrier: bool,
        what: str,
        tell: Callable[[str], None],
        interfaces: Sequence[str] = (),
        logged: Sequence[str] = (),
        without: Sequence[str] = (),
        own_gpus: bool = False,
        executable: str = "",
    ) -> None:
        self._context = context
        self._count = count
        self._barrier = barrier
        self.group = f"{what}.{next(_numbers)}"
        self._tell = tell
        self.logged = logged
        self.without = without
        self.own_gpus = own_gpus
        self.executable = executable
        self.store_hosts: Sequence[str]
        self.reached_at: Sequence[str]
        self.store_hosts, self.reached_at = _addresses(context, interfaces)
        self.discovery = FixedHosts({})
        self._thread: InheritableThread | None = None
        self._cancelled = threading.Event()
        self._broadcast: Any = None
        self._stages: list[int] = []

    def begin(self, card: Card, call: Sequence[memoryview], ended: Callable[[str], None]) -> None:
        slots = free_slots(self._context)
        if self._barrier and has_fixed_slots(self._context) and slots is not None and slots < self._count:
            raise LaunchError(
                f"{counted(self._count, 'process', 'processes')} need as many slots of Spark, which has "
                f"{slots} ({self._context.master}). Lower the number of processes, or give Spark more cores."
            )
        data = b"".join(call)
        if len(data) > _BROADCAST_BYTES:
            self._broadcast = self._context.broadcast(data)
        body = TaskBody(card, data if self._broadcast is None else self._broadcast)

        def run() -> None:
            why = ""
            try:
                self._run(body)
            except Exception as error:  # Py4J's, whose text has the traceback of the task
                why = _words_of(error)
            ended(why)

        self._thread = InheritableThread(target=run, name=self.group, daemon=True)
        self._thread.start()

    def discovered(self, hosts: Mapping[str, int]) -> None:
        self.discovery.set(hosts)

    def shortage(self, came: int) -> str:
        slots = free_slots(self._context)
        has = "" if slots is None else f"Its executors have {counted(slots, 'slot')} now. "
        return (
            f"{TASKS_DID_NOT_START}. {has}Start more executors or give them more cores, end other Spark "
            "jobs, ask for fewer processes, or wait longer: start_timeout, or HOROVOD_SPARK_START_TIMEOUT."
        )

    def diagnosis(self) -> str:
        deadline = time.monotonic() + _SAY_S
        while True:
            said = self._failure_of_stage()
            if said or time.monotonic() >= deadline:
                return said
            time.sleep(_LOOK_S)  # Spark tells its listeners in its own time

    def cancel(self, why: str) -> None:
        self._cancelled.set()
        try:
            self._context.cancelJobGroup(self.group)
        except Exception:  # the context was stopped, and with it all jobs
            pass

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                self.cancel("it does not end by itself")
                self._thread.join(_CLOSE_S)
        if self._broadcast is not None:
            try:
                self._broadcast.destroy()
            except Exception:  # as above
                pass
            self._broadcast = None

    def _run(self, body: TaskBody) -> None:
        if self._barrier:
            self._await_slots()
        if self._cancelled.is_set():
            return
        description = f"{self.group}: {counted(self._count, 'process', 'processes')}"
        self._context.setJobGroup(self.group, description, interruptOnCancel=True)
        partitions = self._context.parallelize(range(self._count), self._count)
        if self._barrier:
            partitions.barrier().mapPartitionsWithIndex(body).collect()
        else:
            partitions.mapPartitionsWithIndex(body).collect()

    def _await_slots(self) -> None:
        """Spark would look for them every 15 s only, and then give up."""
        told_at = time.monotonic() + _PATIENT_S
        while not self._cancelled.is_set():
            slots = free_slots(self._context)
            if slots is None or slots >= self._count:
                return
            if time.monotonic() >= told_at:
                told_at = float("inf")
                self._tell(f"waiting for {counted(self._count, 'slot')} of Spark, which has {slots}")
            self._cancelled.wait(_ASK_S)

    def _failure_of_stage(self) -> str:
        try:
            tracker = self._context.statusTracker()
            store = self._context._jsc.sc().statusStore()
            for job in tracker.getJobIdsForGroup(self.group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    for attempt in range(2):
                        said = store.stageAttempt(stage, attempt, False, None, False, None)._1()
                        reason = said.failureReason()
                        if reason.isDefined():
                            return _first_lines(str(reason.get()))
        except Exception:  # no public interface, or no such attempt
            pass
        return ""


def _addresses(context: Any, interfaces: Sequence[str]) -> tuple[list[str], list[str]]:
    """Addresses at which the store is served, and other names by which executors know the driver."""
    if is_one_machine(context):
        return [unix.fresh_name()], []
    conf = context.getConf()
    if interfaces:
        return store_hosts(interfaces), []
    host, bound = conf.get("spark.driver.host", ""), conf.get("spark.driver.bindAddress", "")
    for name in (host, bound):
        if name and names_of_this_machine([name]):
            return [name], [host] if host != name else []
    return store_hosts(()), [host] if host else []


def _words_of(error: Exception) -> str:
    """Return Spark's own words, without the stack of the JVM."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    if _NO_HOROVOD in text:
        return (
            "The Python of the executors has no horovod. Install it there, or say which Python has it: "
            "PYSPARK_PYTHON, or spark.pyspark.python."
        )
    return _first_lines(text)


def _first_lines(text: str) -> str:
    lines = text.replace("\r", "").split("\n")
    kept = [line for line in lines if line.strip() and not line.startswith(("\tat ", "\t..."))]
    return "\n".join(kept).partition("\nDriver stacktrace:")[0].strip()
