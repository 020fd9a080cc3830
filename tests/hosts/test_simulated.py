"""The simulated hosts are what the other tests take them for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.hosts.simulated import SimulatedHosts, clear_leftovers


def test_every_host_has_a_name_and_an_address_of_its_own(two_hosts: SimulatedHosts) -> None:
    for host, (name, address) in enumerate(zip(two_hosts.names, two_hosts.addresses, strict=True)):
        said = two_hosts.run(host, "sh", "-c", "hostname; getent hosts $(hostname)")
        assert said.stdout.split() == [name.encode(), address.encode(), name.encode()]


def test_hosts_reach_each_other_by_ssh_and_nothing_else(two_hosts: SimulatedHosts) -> None:
    there = two_hosts.run(0, "ssh", two_hosts.names[1], "hostname")
    assert there.stdout.decode().strip() == two_hosts.names[1]
    interfaces = two_hosts.run(0, "ls", "/sys/class/net").stdout.split()
    assert interfaces == [b"eth0", b"lo"]


def test_a_cut_host_is_silent_until_it_is_mended(two_hosts: SimulatedHosts) -> None:
    knock = ("ssh", "-o", "ConnectTimeout=1", two_hosts.names[1], "true")
    two_hosts.cut(1)
    assert two_hosts.run(0, *knock).returncode == 255
    two_hosts.mend(1)
    assert two_hosts.run(0, *knock).returncode == 0


def processes_in(folder: str) -> list[Path]:
    """Those that were started with a file of ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.encode() in Path(process, "cmdline").read_bytes():
                found.append(process)
    return found


def test_hosts_of_a_killed_process_go_away(two_hosts: SimulatedHosts) -> None:
    program = """
import os, signal
from tests.hosts.simulated import SimulatedHosts
with SimulatedHosts(1) as hosts:
    print(hosts.names[0], hosts.environment["SIM_DIR"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    made = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    with made.stdout as said:
        name, folder = said.read().split()
    # Until it is reaped nobody takes its id, and no other test that makes hosts clears its own away.
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
    network = Path("/run/netns", f"sim-{name}")
    assert network.exists()
    assert processes_in(folder)
    assert made.wait() == -signal.SIGKILL
    clear_leftovers()
    assert not network.exists()
    assert not Path(folder).parent.exists()
    assert not processes_in(folder)
    assert two_hosts.run(0, "true").returncode == 0
