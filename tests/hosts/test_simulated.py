"""The simulated hosts are what the other tests take them for."""

from __future__ import annotations

from tests.hosts.simulated import SimulatedHosts


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
