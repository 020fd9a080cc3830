from __future__ import annotations

import ipaddress

import pytest

from horovod.bootstrap.place import addresses
from horovod.bootstrap.place.addresses import (
    Address,
    join_hosts,
    loopback_addresses,
    own_addresses,
    split_hosts,
)
from horovod.errors import ConfigError


def address(host: str, interface: str, prefix: int = 24, **more: bool) -> Address:
    return Address(host, interface, ipaddress.ip_network(f"{host}/{prefix}", strict=False), **more)


HOST = [
    address("127.0.0.1", "lo", 8),
    address("172.17.0.1", "docker0", 16),
    address("10.0.0.5", "eth0"),
    address("10.0.0.6", "eth0", secondary=True),
    address("10.9.0.5", "eth1"),
    address("10.8.0.5", "eth2", running=False),
    address("::1", "lo", 128),
    address("fe80::5", "eth0", 64),
    address("fd00::5", "eth0", 64),
]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_all", lambda: HOST)


def hosts(selection: str = "") -> list[str]:
    return [each.host for each in own_addresses(selection)]


@pytest.mark.usefixtures("host")
def test_what_other_hosts_may_reach_comes_best_first() -> None:
    assert hosts() == ["10.0.0.5", "10.9.0.5", "fd00::5", "10.0.0.6"]
    assert hosts("docker0") == ["172.17.0.1"]
    assert [each.host for each in loopback_addresses()] == ["127.0.0.1", "::1"]


def test_a_host_that_has_nothing_but_bridges_offers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_all", lambda: HOST[:2])
    assert hosts() == ["172.17.0.1"]


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("eth1", ["10.9.0.5"]),
        ("eth1, eth0", ["10.9.0.5", "10.0.0.5", "10.0.0.6", "fd00::5"]),
        ("ib0,eth1", ["10.9.0.5"]),
        ("eth2", ["10.8.0.5"]),
        ("lo", ["127.0.0.1", "::1"]),
        ("10.9.0.0/16", ["10.9.0.5"]),
        ("fd00::/8,eth1", ["fd00::5", "10.9.0.5"]),
        ("10.0.0.0/8,eth0", ["10.0.0.5", "10.0.0.6", "10.9.0.5", "10.8.0.5", "fd00::5"]),
    ],
)
def test_chosen_interfaces_and_subnets(selection: str, expected: list[str]) -> None:
    assert hosts(selection) == expected


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("selection", ["ib0", "11.0.0.0/8", "eth", "10.0.0.0/99", "/", "eth0/24"])
def test_a_selection_without_meaning_here_is_an_error(selection: str) -> None:
    with pytest.raises(ConfigError, match=r"HOROVOD_GLOO_IFACE.*") as caught:
        own_addresses(selection)
    assert caught.value.variable == "HOROVOD_GLOO_IFACE"


def test_the_kernel_lists_loopback() -> None:
    assert "127.0.0.1" in [each.host for each in loopback_addresses()]
    assert all(not each.loopback for each in own_addresses())


def test_lists_of_hosts() -> None:
    assert split_hosts("10.0.0.1, [fd00::1],fd00::2,n1") == ["10.0.0.1", "fd00::1", "fd00::2", "n1"]
    assert join_hosts(["10.0.0.1", "fd00::1", "n1"]) == "10.0.0.1,[fd00::1],n1"
    for wrong in ("", "a,", "[fd00::1", "[]", ",", "n1 [", "n1]", "[[n1]]", "[ n1 ]", "n 1"):
        with pytest.raises(ValueError, match="no host"):
            split_hosts(wrong)
