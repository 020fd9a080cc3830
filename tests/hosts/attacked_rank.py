"""What the ranks of an attacked job do: form a world, reduce once for every line of standard input.

Without a framework, so that a world is there in a moment. Says ``formed``, then every sum. The
rank ``ATTACKED_RANK_WAITS`` reads a line before it goes on to connect, so that others listen meanwhile.
"""

from __future__ import annotations

import array
import os
import sys
from typing import Any

from horovod import _core
from horovod.bootstrap.mesh import connecting as mesh
from horovod.bootstrap.mesh.connections import NetworkPeer
from horovod.runtime import lifecycle

COUNT = 4096


class Waiting(mesh._Bootstrap):
    def _connect_network(self, *which: Any) -> list[NetworkPeer]:
        assert sys.stdin.readline()
        return super()._connect_network(*which)


def main() -> None:
    if os.environ.get("ATTACKED_RANK_WAITS") == os.environ["HOROVOD_RANK"]:
        mesh._Bootstrap = Waiting  # type: ignore[misc]
    runtime = lifecycle.start()
    rank, engine = runtime.topology.rank, runtime.engine
    print("formed", flush=True)
    for number, _ in enumerate(sys.stdin):
        values = array.array("d", [float(rank + 1 + number)]) * COUNT
        address, _ = values.buffer_info()
        handle = engine.submit(
            _core.ALLREDUCE,
            f"x{number}",
            (address, address, _core.FLOAT64, (COUNT,)),
            _core.SUM,
            1.0,
            1.0,
            -1,
            0,
            _core.AWAITED,
        )
        engine.wait(handle)
        assert len(set(values)) == 1
        print(values[0], flush=True)
    lifecycle.stop()


if __name__ == "__main__":
    main()
