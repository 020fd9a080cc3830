"""What is bad and no failure: networks that lose a third of all packets or carry 1 Mbit/s, processes that
stand still for less than the limit, cuts that end before it. Nobody is lost, and the work goes on.

The default run gives each of them some seconds and more room than the limits promise, so that the speed of
the machine does not matter. ``FARANDOLE_FULL_MATRIX=1`` takes what is promised by default, a minute of it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pytest
from tests.hosts.failing_world import FailingWorld
from tests.hosts.simulated import SimulatedHosts

FULL = bool(os.environ.get("FARANDOLE_FULL_MATRIX"))
pytestmark = pytest.mark.timeout(1800 if FULL else 300)

START_LIMIT_S = 120.0
END_LIMIT_S = 120.0
BAD_S = 60.0 if FULL else 8.0
_TCP_RTO_MAX_MS = 44
ROUNDS = 5 if FULL else 1
BY_DEFAULT = {"HEARTBEAT_TIMEOUT_SECONDS": "5", "GLOO_TIMEOUT_SECONDS": "30"}
PAUSE_S = 4.0 if FULL else 2.5
CUT_S, CUT_LIMIT = (8.0, "10") if FULL else (7.0, "12")
"""With TCP's doubling waits nothing would come for 12.6 s after the beginning of either."""
BLOCKED_S = 25.0 if FULL else 18.0
"""TCP gives a connection up after 15 probes that had no answer, here one in each second."""


def _work(
    hosts: SimulatedHosts, stack: ExitStack, settings: Mapping[str, str], places: Sequence[int] = (0, 0, 1)
) -> FailingWorld:
    """Ranks that add up all the time; the store is on the last host."""
    launcher = len(hosts.names) - 1
    world = stack.enter_context(FailingWorld(hosts, places, "steady", -1, launcher, settings))
    world.start(time.monotonic() + START_LIMIT_S)
    world.await_ready(time.monotonic() + START_LIMIT_S)
    return world


def _stays(world: FailingWorld, seconds: float) -> None:
    """For so long it is as it is, and nobody says anything."""
    until = time.monotonic() + seconds
    for rank in world.ranks:
        assert rank.event(until) is None


def _assert_well(world: FailingWorld) -> None:
    """All come to their end when they are told to."""
    world.ranks[0].go()
    ends = world.ends(range(len(world.ranks)), time.monotonic() + END_LIMIT_S)
    assert {end["type"] for end in ends.values()} == {None}, "\n".join(map(str, ends.values()))


def _lose(hosts: SimulatedHosts, host: int) -> None:
    try:
        hosts.loss(host, 30)
    except RuntimeError as error:
        pytest.skip(f"this kernel has no filter that drops packets at random: {error}")


def _repeats_each_second() -> bool:
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, 1000)
        except OSError:
            return False
    return True


def _stand_still(world: FailingWorld, victim: int) -> None:
    process = world.ranks[victim].pid()
    os.kill(process, signal.SIGSTOP)
    _stays(world, PAUSE_S)
    os.kill(process, signal.SIGCONT)
    _stays(world, 1.0)


def test_nobody_is_lost_where_all_is_bad_at_once(simulation: None) -> None:
    with SimulatedHosts(4) as hosts, ExitStack() as stack:
        world = _work(hosts, stack, BY_DEFAULT, (0, 0, 1, 2))
        _lose(hosts, 1)
        hosts.rate(2, "1mbit")
        _stand_still(world, 1)
        _stays(world, BAD_S - PAUSE_S)
        hosts.rate(2, "none")
        hosts.loss(1, 0)
        _assert_well(world)


@pytest.mark.skipif(not FULL, reason="takes a minute each; FARANDOLE_FULL_MATRIX=1 runs it")
@pytest.mark.parametrize("how", ["loss of 30 %", "1 Mbit/s"])
def test_nobody_is_lost_in_a_bad_network(simulation: None, how: str) -> None:
    with SimulatedHosts(3) as hosts, ExitStack() as stack:
        world = _work(hosts, stack, BY_DEFAULT)
        if how == "1 Mbit/s":
            hosts.rate(1, "1mbit")
        else:
            _lose(hosts, 1)
        _stays(world, BAD_S)
        hosts.rate(1, "none")
        hosts.loss(1, 0)
        _assert_well(world)


@pytest.mark.skipif(not FULL, reason="takes long; FARANDOLE_FULL_MATRIX=1 runs it")
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["rank 0", "a worker", "a leader"])
def test_nobody_is_lost_who_stands_still_for_a_while(simulation: None, victim: int) -> None:
    with SimulatedHosts(3) as hosts, ExitStack() as stack:
        world = _work(hosts, stack, BY_DEFAULT)
        for _ in range(ROUNDS):
            _stand_still(world, victim)
        _assert_well(world)


@pytest.mark.skipif(not _repeats_each_second(), reason="needs TCP_RTO_MAX_MS: Linux 6.15")
def test_a_cut_that_ends_before_the_limit_is_survived(simulation: None) -> None:
    with SimulatedHosts(3) as hosts, ExitStack() as stack:
        settings = {"HEARTBEAT_TIMEOUT_SECONDS": CUT_LIMIT, "GLOO_TIMEOUT_SECONDS": "30"}
        world = _work(hosts, stack, settings)
        for _ in range(ROUNDS):
            hosts.cut(1)
            _stays(world, CUT_S)
            hosts.mend(1)
            _stays(world, float(CUT_LIMIT) - CUT_S + 1.0)
        _assert_well(world)


def test_hosts_that_cannot_send_for_a_while_are_not_lost(simulation: None) -> None:
    """Packets that a host drops itself do not count as sent, and TCP has a limit of its own for these."""
    with SimulatedHosts(3) as hosts, ExitStack() as stack:
        settings = {"HEARTBEAT_TIMEOUT_SECONDS": "60", "GLOO_TIMEOUT_SECONDS": "90"}
        world = _work(hosts, stack, settings, (0, 1))
        hosts.block(0, 1)
        hosts.block(1, 0)
        _stays(world, BLOCKED_S)
        hosts.unblock(0, 1)
        hosts.unblock(1, 0)
        _stays(world, 2.0)
        _assert_well(world)


def test_the_end_of_a_connection_between_ranks_that_live_is_told_as_that(simulation: None) -> None:
    with SimulatedHosts(4) as hosts, ExitStack() as stack:
        world = _work(hosts, stack, BY_DEFAULT, (0, 1, 2))
        hosts.reset(1, 2)
        ends = world.ends(range(3), time.monotonic() + END_LIMIT_S)
        for end in ends.values():
            assert end["type"] == "PeerLostError"
            assert re.search(r"connection between rank \d on host \S+ and rank \d on host", end["text"]), end
            assert "As far as is known both ranks run" in end["text"]
            assert "is gone" not in end["text"]
        assert {end["rank"] for end in ends.values()} <= {1, 2}
