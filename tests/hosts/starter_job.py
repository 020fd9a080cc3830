"""What the ranks of the tests of starters run: form a world, reduce once, say who they are in a line of JSON.

Without a framework, so that a world is there in a moment.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
import time

from horovod import _core
from horovod.errors import PeerLostError
from horovod.runtime import lifecycle

COUNT = 20000  # enough to be striped over several streams


def main() -> None:
    runtime = lifecycle.start()
    place, engine = runtime.topology, runtime.engine
    numbers = array.array("d", [float(place.rank + 1 + index) for index in range(COUNT)])
    address = numbers.buffer_info()[0]
    tensor = address, address, _core.FLOAT64, (COUNT,)
    engine.submit(_core.ALLREDUCE, "x", tensor, _core.SUM, 1.0, 1.0, -1, 0, _core.BLOCKING)
    expected = [sum(rank + 1 + index for rank in range(place.size)) for index in range(COUNT)]
    said = {
        "rank": place.rank,
        "size": place.size,
        "local": [place.local_rank, place.local_size],
        "cross": [place.cross_rank, place.cross_size],
        "host": socket.gethostname(),
        "right": list(numbers) == expected,
        "groups": [list(group) for group in runtime.groups],
        "peers": _peers(),
    }
    if "FAILS" in os.environ:
        if str(place.rank) == os.environ["FAILS"]:
            raise ValueError("boom")
        try:
            engine.submit(_core.ALLREDUCE, "y", tensor, _core.SUM, 1.0, 1.0, -1, 0, _core.BLOCKING)
        except PeerLostError as error:
            os.write(sys.stdout.fileno(), f"{place.rank} {error}\n".encode())
            raise
    if str(place.rank) == os.environ.get("SPEAKS_LAST"):  # when the others have ended
        lifecycle.stop()
        time.sleep(1)
    # One call, so that lines of different ranks do not mix.
    os.write(sys.stdout.fileno(), (json.dumps(said) + "\n").encode())
    lifecycle.stop()


def _peers() -> list[list[str]]:
    """Own and other address of every TCP connection of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                    found.append([str(each.getsockname()[0]), str(each.getpeername()[0])])
        except OSError:
            continue
    return sorted(found)


if __name__ == "__main__":
    main()
