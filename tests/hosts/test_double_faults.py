"""The leader of a host stands still and its neighbour dies: the other host is answered in bounded time.

The leader is the one that would have told the others of the death, and rank 0, if it is that, the one that
would have judged.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack

import pytest
from tests.hosts.failing_world import FailingWorld
from tests.hosts.simulated import SimulatedHosts

pytestmark = pytest.mark.timeout(400)

PLACES = (0, 0, 1, 1)
LAUNCHER = 2
PHASES = ("negotiation", "small", "large", "init")
START_LIMIT_S = 120.0
END_LIMIT_S = 60.0
"""Far more than any deadline in use (3 s of silence, 8 s in init): a rank that takes longer hangs."""
ROUNDS = 4 if os.environ.get("FARANDOLE_FULL_MATRIX") else 1


@pytest.mark.parametrize("between_s", [0.0, 1.5][: 2 if ROUNDS > 1 else 1])
def test_the_other_host_is_answered(simulation: None, between_s: float) -> None:
    with SimulatedHosts(LAUNCHER + 1) as hosts:
        for _ in range(ROUNDS):
            _strike(hosts, between_s)


def _strike(hosts: SimulatedHosts, between_s: float) -> None:
    with ExitStack() as stack:
        worlds = [
            (leader, phase, stack.enter_context(_world(hosts, phase, leader)))
            for phase in PHASES  # those in `init` last: their time is limited
            for leader in (0, 2)
        ]
        for forming in (False, True):
            chosen = [world for _, phase, world in worlds if (phase == "init") is forming]
            for world in chosen:
                world.start(time.monotonic() + START_LIMIT_S)
            for world in chosen:
                world.await_ready(time.monotonic() + START_LIMIT_S)
        for leader, _, world in worlds:
            os.kill(world.ranks[leader].pid(), signal.SIGSTOP)
        time.sleep(between_s)  # the time between two faults, no synchronisation
        for leader, _, world in worlds:
            os.kill(world.ranks[leader + 1].pid(), signal.SIGKILL)
        deadline = time.monotonic() + END_LIMIT_S
        for leader, phase, world in worlds:
            others = (2, 3) if leader == 0 else (0, 1)
            ends = world.ends(others, deadline)
            named = {(end["rank"], end["host"]) for end in ends.values()}
            assert len(named) == 1, f"{phase}: not the same cause: {ends}"
            rank, host = named.pop()
            assert rank in (leader, leader + 1), f"{phase}: {ends}"
            assert host == hosts.names[PLACES[leader]], f"{phase}: {ends}"
            expected = "RendezvousError" if phase == "init" else "PeerLostError"
            assert {end["type"] for end in ends.values()} == {expected}, f"{phase}: {ends}"


def _world(hosts: SimulatedHosts, phase: str, leader: int) -> FailingWorld:
    limits = {"START_TIMEOUT": "8"} if phase == "init" else {}
    return FailingWorld(hosts, PLACES, phase, leader, LAUNCHER, limits)
