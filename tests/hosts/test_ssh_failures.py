"""Jobs on several hosts that go wrong: the first cause is named in bounded time, and nothing is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from tests.hosts.jobs import (
    LIMIT_S,
    horovodrun,
    left_behind,
    processes,
    running,
    signal_processes,
    slots,
)
from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import COMMAND

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

LAUNCHER = " ".join(COMMAND)
# A rank whose child has left its session, as a daemon does.
TREE = "setsid sleep 1000 & echo $PPID; sleep 1000"
# The shortest time after which a silent side counts as lost.
SILENCE = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3"}


@pytest.fixture(autouse=True)
def nothing_is_left(two_hosts: SimulatedHosts) -> Iterator[None]:
    yield
    assert left_behind(two_hosts) == []


def test_status_of_a_rank_on_another_host_is_ours(two_hosts: SimulatedHosts) -> None:
    fails = "if [ $HOROVOD_RANK = 3 ]; then echo why >&2; exit 7; fi; exec sleep 1000"
    done = horovodrun(two_hosts, "-np", "4", "-H", slots(two_hosts, 2, 2), "sh", "-c", fails)
    said = done.stderr.decode()
    assert done.returncode == 7
    assert f"rank 3 on {two_hosts.names[1]} exited with status 7" in said
    assert "3 other ranks were ended because of it" in said
    assert said.endswith("its last lines:\n    why\n")


def test_signal_that_killed_a_rank_on_another_host_is_named(two_hosts: SimulatedHosts) -> None:
    fails = "if [ $HOROVOD_RANK = 1 ]; then kill -KILL $$; fi; exec sleep 1000"
    done = horovodrun(two_hosts, "-np", "2", "-H", slots(two_hosts, 1, 1), "sh", "-c", fails)
    assert done.returncode == 137
    assert f"rank 1 on {two_hosts.names[1]} was killed by SIGKILL" in done.stderr.decode()


def test_command_that_a_host_lacks_is_named_with_the_host(two_hosts: SimulatedHosts) -> None:
    done = horovodrun(two_hosts, "-np", "1", "-H", slots(two_hosts, 1, first=1), "no-such-command")
    assert done.returncode == 127
    assert f"no-such-command cannot be run on {two_hosts.names[1]}: not found" in done.stderr.decode()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_ranks_of_all_hosts(two_hosts: SimulatedHosts, signum: signal.Signals) -> None:
    tells = "import signal, time\nfor s in (1, 2, 15): signal.signal(s, lambda n, _: (print(n), exit(0)))\n"
    tells += "print('ready', flush=True)\ntime.sleep(1000)"
    words = ("-np", "2", "-H", slots(two_hosts, 1, 1), "python3", "-c", tells)
    with running(two_hosts, *words) as job:
        job.by_rank(2)
        signal_processes(two_hosts, 0, LAUNCHER, signum)
        status, rest = job.finish()
    assert status == 128 + signum
    assert {f"[{rank}]<stdout>:{signum}" for rank in (0, 1)} <= set(rest.splitlines())


def kill_launcher(hosts: SimulatedHosts, agent: int) -> None:
    assert signal_processes(hosts, 0, LAUNCHER, signal.SIGKILL)


def kill_client(hosts: SimulatedHosts, agent: int) -> None:
    assert signal_processes(hosts, 0, "ssh ", signal.SIGKILL)


def kill_agent(hosts: SimulatedHosts, agent: int) -> None:
    assert hosts.run(1, "kill", "-KILL", str(agent)).returncode == 0


def kill_guard(hosts: SimulatedHosts, agent: int) -> None:
    guard = hosts.run(1, "ps", "-o", "ppid=", "-p", str(agent)).stdout.decode().strip()
    assert hosts.run(1, "kill", "-KILL", guard).returncode == 0


@pytest.mark.parametrize(
    ("kill", "status", "says"),
    [
        (kill_launcher, None, ""),
        (kill_client, 1, "its ssh client was ended by signal 9"),
        (kill_agent, 1, "the process that watches its ranks ended unexpectedly"),
        (kill_guard, 1, "was lost"),
    ],
)
def test_whoever_is_killed_the_job_ends(
    two_hosts: SimulatedHosts,
    kill: Callable[[SimulatedHosts, int], None],
    status: int | None,
    says: str,
) -> None:
    with running(two_hosts, "-np", "4", "-H", slots(two_hosts, 2, 2), "sh", "-c", TREE) as job:
        agent = int(job.by_rank(4)[3])
        kill(two_hosts, agent)
        ended, rest = job.finish()
    if status is not None:
        assert ended == status
        assert f"host {two_hosts.names[1]} was lost" in rest
        assert says in rest
        assert "ranks 2, 3; 2 other ranks were ended because of it" in rest
    assert left_behind(two_hosts) == []


def test_second_signal_kills_on_all_hosts(two_hosts: SimulatedHosts) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done"
    with running(two_hosts, "-np", "2", "-H", slots(two_hosts, 1, 1), "sh", "-c", stubborn) as job:
        job.by_rank(2)
        signal_processes(two_hosts, 0, LAUNCHER, signal.SIGTERM)
        signal_processes(two_hosts, 0, LAUNCHER, signal.SIGTERM)
        assert job.finish()[0] == 128 + signal.SIGTERM


def lost_host(hosts: SimulatedHosts, break_it: Callable[[int], None]) -> tuple[int, str, float]:
    """Run a job, break host 1 in the middle; status, words, and seconds until the job had ended."""
    words = ("-np", "4", "-H", slots(hosts, 2, 2), "sh", "-c", TREE)
    with running(hosts, *words, extra=SILENCE) as job:
        job.by_rank(4)
        began = time.monotonic()
        break_it(1)
        status, rest = job.finish()
    assert f"host {hosts.names[1]} was lost" in rest
    assert "ranks 2, 3; 2 other ranks were ended because of it" in rest
    return status, rest, time.monotonic() - began


def test_host_that_is_cut_off_ends_the_job_on_both_sides(two_hosts: SimulatedHosts) -> None:
    try:
        status, rest, took_s = lost_host(two_hosts, two_hosts.cut)
        assert (status, "nothing has been heard from it for 6 s" in rest) == (1, True)
        assert took_s < 20
        assert left_behind(two_hosts) == []  # the lost host cleans up without us
    finally:
        two_hosts.mend(1)


def test_host_that_is_killed_or_powered_off_ends_the_job(two_hosts: SimulatedHosts) -> None:
    for break_it in (two_hosts.kill, two_hosts.power_off):
        try:
            status, _, took_s = lost_host(two_hosts, break_it)
            assert status == 1
            assert took_s < 20
            assert left_behind(two_hosts, 0) == []
        finally:
            two_hosts.boot(1)


def test_host_that_is_paused_ends_the_job_and_its_ranks_later(two_hosts: SimulatedHosts) -> None:
    try:
        status, rest, took_s = lost_host(two_hosts, two_hosts.pause)
        assert (status, "nothing has been heard from it for 6 s" in rest) == (1, True)
        assert took_s < 20
        assert processes(two_hosts, 1)
    finally:
        two_hosts.resume(1)


def test_cut_off_launcher_ends_ranks_of_other_hosts(two_hosts: SimulatedHosts) -> None:
    words = ("-np", "4", "-H", slots(two_hosts, 2, 2), "sh", "-c", TREE)
    try:
        with running(two_hosts, *words, extra=SILENCE) as job:
            job.by_rank(4)
            two_hosts.cut(0)
            assert left_behind(two_hosts, 1) == []
            assert job.finish()[0] == 1
    finally:
        two_hosts.mend(0)


def test_all_hosts_that_cannot_be_reached_are_named(two_hosts: SimulatedHosts) -> None:
    one, other = two_hosts.names
    two_hosts.run(1, "sh", "-c", "mv $HOME/.ssh/authorized_keys $HOME/.ssh/no_keys")
    try:
        placed = f"{one}:1,{other}:1,unknown.host.invalid:1,10.77.0.99:1"
        done = horovodrun(two_hosts, "-np", "4", "-H", placed, "--start-timeout", "8", "true")
    finally:
        two_hosts.run(1, "sh", "-c", "mv $HOME/.ssh/no_keys $HOME/.ssh/authorized_keys")
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "Nothing can be started on 3 of 3 hosts:" in said
    lines = {line.strip().partition(": ")[0]: line for line in said.splitlines()[1:]}
    for host, words in {
        other: ("Permission denied", "authorized_keys"),
        "unknown.host.invalid": ("Could not resolve", "spelling"),
    }.items():
        for word in words:
            assert word in lines[host]
    assert "No route to host" in lines["10.77.0.99"] or "no answer" in lines["10.77.0.99"]
