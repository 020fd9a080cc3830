"""A driver on a standalone cluster: ``standalone_driver.py MASTER HOST WHAT``. Its last line: the result."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark import SparkConf, SparkContext

import horovod.spark
from horovod.errors import HorovodError


def world() -> list[Any]:
    import socket

    import numpy as np

    import horovod.arrays as hvd

    hvd.init()
    total = hvd.allreduce(np.full(1, float(hvd.rank())), op=hvd.Sum)
    places = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()]
    return [socket.gethostname(), *places, float(total[0])]


def die(victim: str) -> None:
    """All Python workers and executors of one host are killed, when all ranks are there."""
    import os
    import signal
    import socket
    import time

    import horovod.arrays as hvd

    hvd.init()
    hvd.barrier()
    if socket.gethostname() == victim and hvd.local_rank() == 0:
        for each in os.listdir("/proc"):  # of this host: it has a process table of its own
            if each.isdigit() and int(each) not in (1, os.getpid()):
                with open(f"/proc/{each}/cmdline", "rb") as file:
                    line = file.read()
                if b"executor-id" in line or b"pyspark.daemon" in line:
                    os.kill(int(each), signal.SIGKILL)
    time.sleep(600)


def main() -> None:
    master, host, what = sys.argv[1:]
    conf = SparkConf().setMaster(master).setAppName("farandole-tests")
    conf.setAll(
        {
            "spark.driver.host": host,
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
        }.items()
    )
    context = SparkContext(conf=conf)
    context.setLogLevel("ERROR")
    found: list[Any]
    try:
        if what == "world":
            found = horovod.spark.run(world, num_proc=4, start_timeout=100, verbose=2)
        else:
            victim = host[:-1] + "2"
            found = horovod.spark.run(die, (victim,), num_proc=4, start_timeout=100, verbose=2)
    except HorovodError as error:
        found = [[type(error).__name__, str(error)]]
    print(json.dumps(found), flush=True)
    context.stop()


if __name__ == "__main__":
    main()
