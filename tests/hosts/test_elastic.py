"""Elastic jobs on several hosts: some are killed, go silent, are drained, and come back."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.elastic.training import LONG
from tests.hosts.elastic_jobs import RANK, ElasticJob, discovery, elastic, name
from tests.hosts.jobs import LIMIT_S, PYTHON, left_behind, running, signal_processes
from tests.hosts.simulated import SimulatedHosts
from tests.hosts.slurm import slurm_on, why_no_slurm
from tests.launch.launching import environment

pytestmark = pytest.mark.timeout(4 * LIMIT_S)

# The shortest time after which a silent side counts as lost.
SILENCE = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3"}


@pytest.fixture
def hosts(simulation: None) -> Iterator[SimulatedHosts]:
    with SimulatedHosts(3) as made:
        yield made


def test_a_host_that_dies_is_left_and_comes_back(hosts: SimulatedHosts, tmp_path: Path) -> None:
    name(hosts, tmp_path, 0, 1, 2)
    with elastic(
        hosts, tmp_path, *discovery(tmp_path), "--blacklist-cooldown-range", "1", "2", extra=SILENCE
    ) as job:
        job.world(3)
        hosts.kill(1)
        after = job.world(2)
        assert {member["host"] for member in after["members"]} == {hosts.names[0], hosts.names[2]}
        hosts.boot(1)
        again = job.world(3)
        assert again["members"][0]["host"] == hosts.names[0]
        assert again["members"][2]["host"] == hosts.names[1]
        said = job.finish()
    assert said.count("done 3") == 3
    assert left_behind(hosts) == []


def test_a_host_that_goes_silent_is_left(hosts: SimulatedHosts, tmp_path: Path) -> None:
    name(hosts, tmp_path, 0, 1, 2)
    with elastic(hosts, tmp_path, *discovery(tmp_path), extra=SILENCE) as job:
        job.world(3)
        hosts.cut(2)
        after = job.world(2)
        assert {member["host"] for member in after["members"]} == set(hosts.names[:2])
        said = job.finish()
    assert f"host {hosts.names[2]} was lost" in said
    assert said.count("done 2") == 2
    hosts.mend(2)
    assert left_behind(hosts) == []  # its agent has noticed, too


def test_the_host_of_rank_0_dies(hosts: SimulatedHosts, tmp_path: Path) -> None:
    name(hosts, tmp_path, 1, 2)  # the launcher's own host has no rank
    with elastic(hosts, tmp_path, *discovery(tmp_path), extra=SILENCE) as job:
        job.world(2)
        hosts.power_off(1)
        after = job.world(1)
        assert after["members"][0]["host"] == hosts.names[2]
        assert job.finish().count("done 1") == 1


def train(job: ElasticJob, ranks: int) -> None:
    """Read what it prints until so many ranks train."""
    for _ in range(ranks):
        while not any("trains" in line for line in job.job.lines(1)):
            pass


@LONG
@pytest.mark.parametrize("fault", ["power off", "cut", "pause", "stop"])
@pytest.mark.parametrize("slots", [1, 2])
def test_silence_costs_the_limit_of_silence(
    hosts: SimulatedHosts, tmp_path: Path, fault: str, slots: int
) -> None:
    """The default limit is 5 s, and the next step comes within 6 s. A wait of the driver's own, or of its
    connection with the host, makes it 10 s.
    """
    name(hosts, tmp_path, 0, 1, 2, slots=slots)
    with elastic(hosts, tmp_path, *discovery(tmp_path)) as job:
        job.world(3 * slots)
        train(job, 3 * slots)
        at = time.time()
        if fault == "power off":
            hosts.power_off(2)
        elif fault == "cut":
            hosts.cut(2)
        elif fault == "pause":
            hosts.pause(2)
        else:
            assert signal_processes(hosts, 2, f"{PYTHON} {RANK}", signal.SIGSTOP) == slots
        job.world(2 * slots)
        (tmp_path / "enough").touch()
        said = job.finish()
        hosts.mend(2)
        hosts.resume(2)
    first = min(float(found) for found in re.findall(rf"trains {2 * slots} ([0-9.]+)", said))
    assert first - at < 9.0, said
    assert said.count(f"done {2 * slots}") == 2 * slots


@LONG
def test_a_longer_limit_survives_a_longer_cut(hosts: SimulatedHosts, tmp_path: Path) -> None:
    """One setting raises them all: that of ranks, of the driver and of the agents, of ssh and of TCP."""
    limit = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "60"}
    name(hosts, tmp_path, 0, 1, 2)
    with elastic(hosts, tmp_path, *discovery(tmp_path), extra=limit) as job:
        job.world(3)
        train(job, 3)
        hosts.cut(2)
        time.sleep(25.0)  # the cut
        hosts.mend(2)
        said = job.finish()
    assert said.count("done 3") == 3, said
    assert "world 2" not in said
    assert left_behind(hosts) == []


def test_hosts_come_and_go_without_a_failure(hosts: SimulatedHosts, tmp_path: Path) -> None:
    name(hosts, tmp_path, 0, 1)
    with elastic(hosts, tmp_path, *discovery(tmp_path)) as job:
        job.world(2)
        name(hosts, tmp_path, 0, 1, 2)
        job.world(3)
        name(hosts, tmp_path, 1, 2)
        after = job.world(2)
        assert [member["host"] for member in after["members"]] == hosts.names[1:]
        assert after["reasons"] == []
        assert job.finish().count("done 2") == 2
    assert left_behind(hosts) == []


def test_the_end_of_the_launcher_ends_all(hosts: SimulatedHosts, tmp_path: Path) -> None:
    name(hosts, tmp_path, 0, 1)
    with elastic(hosts, tmp_path, *discovery(tmp_path)) as job:
        job.world(2)
        signal_processes(hosts, 0, f"{PYTHON} -m horovod.runner.launch", signal.SIGKILL)
        job.job.process.wait(LIMIT_S)
    assert left_behind(hosts) == []


@pytest.mark.parametrize("lost", ["nobody", "a rank"])
def test_another_launcher_goes_on(hosts: SimulatedHosts, tmp_path: Path, lost: str) -> None:
    name(hosts, tmp_path, 0, 1, 2)
    state = str(tmp_path / "state")
    by_slot = ("--failure-domain", "slot", "--blacklist-cooldown-range", "1", "1")
    with elastic(hosts, tmp_path, *discovery(tmp_path), *by_slot, "--state", state) as job:
        job.world(3)
        signal_processes(hosts, 0, f"{PYTHON} -m horovod.runner.launch", signal.SIGKILL)
        job.job.process.wait(LIMIT_S)
    if lost == "a rank":
        assert signal_processes(hosts, 1, f"{PYTHON} {RANK}", signal.SIGKILL) == 1
    with running(hosts, "--resume", state) as resumed:
        following = ElasticJob(resumed, tmp_path)
        following.until(lambda event: event["event"] == "driver")
        if lost == "a rank":
            following.world(2)
            following.world(3)
        said = following.finish()
    assert said.count("done 3") == 3
    assert ("killed by SIGKILL" in said) == (lost == "a rank")
    assert left_behind(hosts) == []


def listens(hosts: SimulatedHosts, number: int, address: str) -> bool:
    """Whether a process of a host is connected with the store at this address."""
    found = hosts.run(number, "ss", "-tnH", "state", "established", "dst", address).stdout.decode()
    return any(":22 " not in line for line in found.splitlines())


def listening(hosts: SimulatedHosts) -> set[str]:
    """Addresses of the first host where a process listens that is not its ssh server."""
    found = hosts.run(0, "ss", "-tlnH").stdout.decode().splitlines()
    addresses = [line.split()[3] for line in found]
    return {address.rpartition(":")[0] for address in addresses if not address.endswith(":22")}


def test_the_store_opens_when_another_host_comes(hosts: SimulatedHosts, tmp_path: Path) -> None:
    name(hosts, tmp_path, 0)
    with elastic(hosts, tmp_path, *discovery(tmp_path, processes=1)) as job:
        job.world(1)
        train(job, 1)
        assert listening(hosts) == {"127.0.0.1"}
        name(hosts, tmp_path, 0, 1)
        job.world(2)
        assert hosts.addresses[0] in listening(hosts)
        assert job.finish().count("done 2") == 2


def test_another_launcher_goes_on_after_a_power_failure(hosts: SimulatedHosts, tmp_path: Path) -> None:
    """Nothing tells the ranks that their connections with the first one are no more: they say nothing there,
    and wait for news.
    """
    name(hosts, tmp_path, 1)
    state = str(tmp_path / "state")
    options = ("-np", "1", "--min-np", "1", "--host-discovery-script", f"cat {tmp_path}/hosts")
    with elastic(hosts, tmp_path, *options, "--state", state) as job:
        job.world(1)
        while not any("trains" in line for line in job.job.lines(1)):
            pass
        while not listens(hosts, 1, hosts.addresses[0]):
            time.sleep(0.05)  # nothing tells that a thread has connected
        hosts.power_off(0)
        job.job.process.wait(LIMIT_S)
    hosts.boot(0)
    with running(hosts, "--resume", state) as resumed:
        following = ElasticJob(resumed, tmp_path)
        following.until(lambda event: event["event"] == "driver")
        name(hosts, tmp_path, 1, 2)
        following.world(2)
        assert following.finish().count("done 2") == 2
    assert left_behind(hosts) == []


@pytest.fixture
def cluster(hosts: SimulatedHosts) -> Iterator[Mapping[str, str]]:
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_on(hosts) as clients:
        yield clients


def test_a_node_that_slurm_drains_is_left(
    hosts: SimulatedHosts, cluster: Mapping[str, str], tmp_path: Path
) -> None:
    with elastic(
        hosts,
        tmp_path,
        *("-np", "2", "--min-np", "1"),
        first=("salloc", "-N", "3", "--ntasks-per-node=1"),
        extra=environment(dict(cluster)),
    ) as job:
        job.world(3)
        hosts.run(
            0, "scontrol", "update", f"nodename={hosts.names[1]}", "state=drain", "reason=x", extra=cluster
        )
        after = job.world(2)
        assert [member["host"] for member in after["members"]] == [hosts.names[0], hosts.names[2]]
        assert job.finish().count("done 2") == 2
