"""A rank that is told by its launcher, line by line, who it is in each world: ``rank size``."""

from __future__ import annotations

import os
import sys

import numpy as np

import horovod.arrays as hvd
from horovod.errors import HorovodInternalError


def main() -> None:
    for line in sys.stdin:
        os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"] = line.split()
        hvd.shutdown()
        try:
            hvd.init()
            total = hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)
            print(hvd.rank(), hvd.size(), total[0], flush=True)
        except HorovodInternalError as error:
            print(f"failed: {error}", flush=True)


if __name__ == "__main__":
    main()
