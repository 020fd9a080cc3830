"""Settings of Spark for elastic jobs, as pairs of name and value: ``conf.set(*PAIR)``.

Spark 3.1 has renamed ``spark.blacklist`` to ``spark.excludeOnFailure``: these are the names of the Spark that
is installed here.
"""

from __future__ import annotations

import re

import pyspark

__all__ = [
    "SPARK_CONF_ALWAYS_RESTART_FAILED_TASK",
    "SPARK_CONF_BLACKLIST_DISABLED",
    "SPARK_CONF_BLACKLIST_ENABLED",
    "SPARK_CONF_DEFAULT_VALUES",
    "SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_REUSE_FAILING_NODE",
    "SPARK_CONF_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK",
    "family_of",
]

_MOST = 2**31 - 1


def family_of(version: str) -> str:
    """Prefix of the settings by which a version of Spark leaves out executors and nodes."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return "spark.excludeOnFailure" if numbers >= [3, 1] else "spark.blacklist"


_FAMILY = family_of(pyspark.__version__)


def _pair(name: str, value: int | str) -> tuple[str, str]:
    return (name if name.startswith("spark.") else f"{_FAMILY}.{name}"), str(value)


SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = _pair("spark.task.maxFailures", _MOST)
SPARK_CONF_BLACKLIST_DISABLED = _pair("enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = _pair("enabled", "true")

# Of one stage: what has failed is used again, or not.
SPARK_CONF_REUSE_FAILED_EXECUTOR = _pair("stage.maxFailedTasksPerExecutor", _MOST)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = _pair("stage.maxFailedTasksPerExecutor", 1)
SPARK_CONF_REUSE_FAILING_NODE = _pair("stage.maxFailedExecutorsPerNode", _MOST - 1)
SPARK_CONF_DONT_REUSE_FAILING_NODE = _pair("stage.maxFailedExecutorsPerNode", 1)

# Where a task may be tried again that has failed there.
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = _pair("task.maxTaskAttemptsPerExecutor", _MOST)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = _pair("task.maxTaskAttemptsPerExecutor", 2)
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = _pair("task.maxTaskAttemptsPerExecutor", 1)
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = _pair("task.maxTaskAttemptsPerNode", _MOST - 1)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = _pair("task.maxTaskAttemptsPerNode", 2)
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = _pair("task.maxTaskAttemptsPerNode", 1)

# Of all stages.
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = _pair("application.maxFailedTasksPerExecutor", _MOST)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = _pair("application.maxFailedTasksPerExecutor", 1)
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = _pair("application.maxFailedExecutorsPerNode", _MOST)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = _pair("application.maxFailedExecutorsPerNode", 1)

SPARK_CONF_DEFAULT_VALUES = (
    _pair("spark.task.maxFailures", 4),
    SPARK_CONF_BLACKLIST_DISABLED,
    _pair("stage.maxFailedTasksPerExecutor", 2),
    _pair("stage.maxFailedExecutorsPerNode", 2),
    SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK,
    SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK,
    _pair("application.maxFailedTasksPerExecutor", 2),
    _pair("application.maxFailedExecutorsPerNode", 2),
)
