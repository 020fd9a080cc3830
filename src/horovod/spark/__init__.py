"""Training inside a Spark cluster: functions run in the tasks of a Spark job, as the ranks of one world."""

from horovod.requirements import require

require("horovod.spark", "pyspark")

from horovod.spark.calls import run, run_elastic
from horovod.spark.runner import HorovodRunner

__all__ = ["HorovodRunner", "run", "run_elastic"]
