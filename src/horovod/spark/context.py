"""The SparkContext of this process, and what is to be known of it."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext

from horovod.errors import LaunchError

__all__ = ["active_context", "free_slots", "has_fixed_slots", "is_one_machine"]


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
