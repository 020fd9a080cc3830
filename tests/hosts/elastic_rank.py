"""A rank of an elastic job: adds up what all ranks give, until a file says that it is enough."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import horovod.arrays as hvd
from horovod.common.elastic import ObjectState, State, run_fn


def main(enough: Path) -> None:
    hvd.init()
    state = ObjectState(lambda value: hvd.broadcast_object(value, 0, "state"), hvd.rank, step=0)

    def train(state: State) -> None:
        assert isinstance(state, ObjectState)
        ranks, began = hvd.size(), time.time()
        print(f"trains {ranks} {began:.3f}", flush=True)
        while True:
            over = enough.exists()
            # The last one is how many want to end: all do so together.
            given = np.array([hvd.rank() + 1.0, 1.0, float(over)])
            total = hvd.allreduce(given, op=hvd.Sum, name="total")
            assert total[0] == ranks * (ranks + 1) / 2, total
            assert total[1] == ranks, total
            if total[2]:
                return
            state.step += 1
            time.sleep(0.02)
            state.commit()

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    run_fn(train, reset)(state)
    print(f"done {hvd.size()}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
