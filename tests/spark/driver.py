"""A driver that tests do something to: ``driver.py MASTER WHAT``. It says which processes its ranks are."""

from __future__ import annotations

import sys
import threading
from typing import Any

from pyspark import SparkConf, SparkContext
from tests.spark.conftest import settings

import horovod.spark


def wait() -> None:
    """Says its process, and waits for ever."""
    import os
    import time

    import horovod.arrays as hvd

    hvd.init()
    print(f"rank {hvd.rank()} process {os.getpid()}", flush=True)
    time.sleep(600)


class Both:
    """Says when both ranks are there."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._count = 0

    def write(self, text: str) -> object:
        self._count += text.count("process")
        if self._count == 2:
            self.event.set()
        return sys.stdout.write(text)

    def flush(self) -> object:
        return sys.stdout.flush()


def main() -> None:
    context: Any = SparkContext(conf=SparkConf().setAll(settings(sys.argv[1]).items()))
    both = Both()
    if sys.argv[2] == "stop":

        def stop() -> None:
            both.event.wait(60)
            context.stop()

        threading.Thread(target=stop, daemon=True).start()
    try:
        horovod.spark.run(wait, num_proc=2, stdout=both, verbose=0)
    except BaseException as error:
        print(f"driver: {type(error).__name__}: {error}", flush=True)
    print("driver: over", flush=True)
    context.stop()


if __name__ == "__main__":
    main()
