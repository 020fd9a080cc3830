"""A rank of an elastic job that a launcher of the user's own has started: it trains until a file is there."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import horovod.arrays as hvd
from horovod.common.elastic import ObjectState, run_fn

faulthandler.dump_traceback_later(60)  # the test gives up after 90
hvd.init()
state = ObjectState(hvd.broadcast_object, hvd.rank, step=0)
stop = Path(sys.argv[1])


def train(state: Any) -> None:
    wanted = np.zeros(1)
    while not wanted[0]:
        wanted = hvd.allreduce(np.array([float(stop.exists())]), op=hvd.Sum)
        state.step += 1
        print(os.getpid(), hvd.rank(), hvd.size(), state.step, flush=True)
        state.commit()


def reset() -> None:
    hvd.shutdown()
    hvd.init()


run_fn(train, reset)(state)
