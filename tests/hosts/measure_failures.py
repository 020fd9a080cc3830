"""How long ranks take to be told of a failure: medians and worst cases, for docs/failures.md.

    python -m tests.hosts.measure_failures [worlds]

Makes simulated hosts (see ``simulated.py``), starts several worlds of five ranks on three of them, all of
which wait for an operation that the victim does not submit, and lets something happen to each. The time is
from the fault to the exception in Python on each rank.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tests.hosts.failing_world import FailingWorld
from tests.hosts.simulated import SimulatedHosts

PLACES = (0, 0, 1, 1, 2)
LIMIT_S = 60.0


def together(
    hosts: SimulatedHosts, count: int, victim: int, stack: ExitStack, limit_s: str
) -> list[FailingWorld]:
    settings = {"HEARTBEAT_TIMEOUT_SECONDS": limit_s}
    worlds = [
        stack.enter_context(FailingWorld(hosts, PLACES, "negotiation", victim, 3, settings))
        for _ in range(count)
    ]
    for world in worlds:
        world.start(time.monotonic() + LIMIT_S)
    for world in worlds:
        world.await_ready(time.monotonic() + LIMIT_S)
    time.sleep(1.0)  # all is quiet
    return worlds


def report(what: str, here: Sequence[float], elsewhere: Sequence[float], unit_s: float, unit: str) -> None:
    cells = [what]
    for seconds in (here, elsewhere):
        if seconds:
            middle, worst = statistics.median(seconds) / unit_s, max(seconds) / unit_s
            cells.append(f"{middle:.1f} / {worst:.1f} {unit} (n={len(seconds)})")
        else:
            cells.append("-")
    print(" | ".join(cells), flush=True)


def one_by_one(
    hosts: SimulatedHosts, count: int, victim: int, number: int, what: str, unit: tuple[float, str]
) -> None:
    """A signal to one process of each world, with the default limit."""
    here: list[float] = []
    elsewhere: list[float] = []
    with ExitStack() as stack:
        struck = []
        for world in together(hosts, count, victim, stack, "5"):
            process = world.ranks[victim].pid()
            at = time.monotonic()
            os.kill(process, number)
            struck.append((world, at))
            time.sleep(0.3)
        for world, at in struck:
            for rank, end in world.ends([r for r in range(5) if r != victim], at + LIMIT_S).items():
                (here if PLACES[rank] == PLACES[victim] else elsewhere).append(end["seen"] - at)
    report(what, here, elsewhere, *unit)


def whole_host(
    hosts: SimulatedHosts,
    count: int,
    strike: Callable[[int], None],
    repair: Callable[[int], None],
    what: str,
    limit_s: str,
) -> None:
    """Something happens to the second host, in all worlds at once."""
    elsewhere: list[float] = []
    with ExitStack() as stack:
        worlds = together(hosts, count, 2, stack, limit_s)
        at = time.monotonic()
        strike(1)
        for world in worlds:
            elsewhere += [end["seen"] - at for end in world.ends([0, 1, 4], at + LIMIT_S).values()]
    repair(1)
    report(f"{what}, limit {limit_s} s", [], elsewhere, 1.0, "s")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print("what | ranks of the host | ranks elsewhere: median / worst")
    roles = {"a worker": 3, "the leader of a host": 2, "rank 0": 0, "the only rank of a host": 4}
    with SimulatedHosts(4) as hosts:
        for role, victim in roles.items():
            one_by_one(hosts, count, victim, signal.SIGKILL, f"SIGKILL of {role}", (1e-3, "ms"))
        for role, victim in roles.items():
            one_by_one(hosts, count, victim, signal.SIGSTOP, f"SIGSTOP of {role}, limit 5 s", (1.0, "s"))
        for limit_s in ("3", "5", "10"):
            whole_host(hosts, count, hosts.cut, hosts.mend, "cable cut", limit_s)
            whole_host(hosts, count, hosts.power_off, hosts.boot, "powered off", limit_s)


if __name__ == "__main__":
    main()
