"""One of two ranks that somebody without the key stands between: a router of theirs, so to say. Its argument
says what he does once the world stands. Prints how it went as one JSON line.

He lives in the process of rank 1, which believes that the way to rank 0 leads through him.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
from tests.middle import Middle

from horovod.bootstrap.mesh import others
from horovod.bootstrap.network.routes import Route
from horovod.bootstrap.place.addresses import Address
from horovod.bootstrap.trust.handshake import Role
from horovod.collectives import objects
from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Sum
from horovod.errors import HorovodError
from horovod.runtime import lifecycle

LIMIT_S = 10.0
COUNT = 4096
SECRET = "a text that stands for what nobody else should see"

middles: list[Middle] = []


def lead_through_the_middle(
    offered: Sequence[tuple[str, int]], mine: Sequence[Address], *, same_machine: bool
) -> list[Route]:
    middle = Middle((offered[0][0], offered[0][1]))
    middle.__enter__()
    middles.append(middle)
    return [Route(*middle.address)]


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {os.environ['CANARY']}",)


def bomb(data: bytes) -> bytes:
    """In place of a pickle that is long enough, wherever it begins in ``data``."""
    mark = cloudpickle.dumps(SECRET * 99)[:2]
    place = data.find(mark)
    while place >= 0 and SECRET.encode() not in data[place : place + 128]:
        place = data.find(mark, place + 1)
    if place < 0:
        return data
    charge = pickle.dumps(Bomb())
    return data[:place] + charge + data[place + len(charge) :]


def flipped(data: bytes) -> bytes:
    """A bit of an array's element, far from where messages begin."""
    if len(data) < 2000:
        return data
    return data[:1503] + bytes([data[1503] ^ 1]) + data[1504:]


def lengthened(data: bytes) -> bytes:
    """A record that says that it is as long as records may be: more than what comes before an answer."""
    return (1 << 16).to_bytes(4, "little") + data[4:]


def between(what: str) -> None:
    """From now on he does ``what``."""
    by_role = {Role(middle.hello[8]): middle for middle in middles}
    data, control = by_role[Role.DATA], by_role[Role.CONTROL]
    seen: list[int] = []

    def once(number: int, said: bytes, instead: bytes) -> bytes:
        seen.append(number)
        return instead if len(seen) == 1 else said

    match what:
        case "change":
            data.answers = lambda _, said: flipped(said)
        case "longer":
            data.answers = lambda _, said: lengthened(said)
        case "bomb":
            data.answers = lambda _, said: bomb(said)
        case "repeat":
            control.requests = lambda start, said: once(start, said, said * 2)
        case "drop":
            control.requests = lambda start, said: once(start, said, b"")


def main() -> None:
    what = sys.argv[1]
    rank = int(os.environ["HOROVOD_RANK"])
    if rank == 1:
        vars(others)["numeric_routes"] = lead_through_the_middle
    report: dict[str, Any] = {}
    try:
        lifecycle.start()
        work(rank, what, report)
    except HorovodError as error:
        report |= {"type": type(error).__name__, "text": str(error)}
        report |= {"rank": getattr(error, "rank", None), "host": getattr(error, "host", None)}
    print(json.dumps(report), flush=True)
    sys.stdin.read()  # the other one has reported, too
    os._exit(0)


def work(rank: int, what: str, report: dict[str, Any]) -> None:
    assert sums(rank, "before") == [3.0]
    assert objects.broadcast_object(collectives, [SECRET]) == [SECRET]
    if rank == 1:
        between(what)
    report["sum"] = sums(rank, "after")
    got = objects.broadcast_object(collectives, SECRET * 99 if rank == 0 else None)
    report["object"] = got == SECRET * 99
    until = time.monotonic() + LIMIT_S
    number = 0
    # Who only sent what was altered, or what is still to be missed, learns of it a moment later.
    while os.environ["HOROVOD_NETWORK_PROTECTION"] != "off" and time.monotonic() < until:
        number += 1
        sums(rank, f"later.{number}")
        time.sleep(0.01)


def sums(rank: int, name: str) -> list[float]:
    """What is in the sum of an array of ``rank + 1`` everywhere."""
    array = np.full(COUNT, rank + 1.0)
    collectives.synchronize(collectives.allreduce(array, array, name, Sum))
    return sorted(set(array.tolist()))


if __name__ == "__main__":
    main()
