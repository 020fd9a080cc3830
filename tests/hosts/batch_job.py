"""The ``train.py`` of the tests of batch files: says who it is, and a sum over all ranks.

With ``--resume FOLDER`` it then waits, and saves when SIGTERM comes. It needs no framework, so that a world
is there in a moment.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import sys
from pathlib import Path

from horovod import _core
from horovod.runtime import lifecycle


def say(line: str) -> None:
    """In one call, so that lines of different ranks do not mix."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main() -> None:
    runtime = lifecycle.start()
    place = runtime.topology
    numbers = array.array("d", [place.rank + 1.0])
    address = numbers.buffer_info()[0]
    tensor = address, address, _core.FLOAT64, (1,)
    runtime.engine.submit(_core.ALLREDUCE, "x", tensor, _core.SUM, 1.0, 1.0, -1, 0, _core.BLOCKING)
    say(f"rank {place.rank} of {place.size} on {socket.gethostname()}: sum {numbers[0]}")
    if "--resume" in sys.argv:
        folder = Path(sys.argv[sys.argv.index("--resume") + 1])
        folder.mkdir(exist_ok=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        (folder / f"waits-{place.rank}").touch()
        if signal.sigtimedwait([signal.SIGTERM], 60) is not None:
            (folder / f"saved-{place.rank}").touch()
        os._exit(0)
    lifecycle.stop()


if __name__ == "__main__":
    main()
