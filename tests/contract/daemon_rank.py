"""A script that ends while its daemon threads are in the middle of collectives."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Sum
from horovod.common.basics import HorovodBasics
from horovod.errors import HorovodError

THREADS = 4
WARM = 20
"""Sums of each thread before the script ends."""


def work(name: str, warm: threading.Barrier) -> None:
    """Sum without end; go on when the world has ended."""
    array = np.ones(3)
    with contextlib.suppress(HorovodError):  # the other rank may be gone already
        for _ in range(WARM):
            collectives.synchronize(collectives.allreduce(array, array, name, Sum))
    warm.wait()
    while True:
        try:
            collectives.synchronize(collectives.allreduce(array, array, name, Sum))
        except HorovodError:
            continue


def main() -> None:
    """End in the middle of what the threads do."""
    HorovodBasics().init()
    warm = threading.Barrier(THREADS + 1)
    for number in range(THREADS):
        threading.Thread(target=work, args=(f"t.{number}", warm), daemon=True).start()
    warm.wait()
    print("the script ends")


if __name__ == "__main__":
    main()
