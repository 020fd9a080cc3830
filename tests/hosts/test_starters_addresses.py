"""Ranks on several hosts find ways that work by trying: interfaces, subnets, both kinds of addresses."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hosts.simulated import SimulatedHosts

import horovod

JOB = str(Path(__file__).with_name("starter_job.py"))
HELD_UP = str(Path(__file__).with_name("attacked_rank.py"))
PORT = "23456"
LIMIT_S = 60.0


def start(
    hosts: SimulatedHosts,
    addresses: str,
    extra: Mapping[str, str],
    ranks: Sequence[int] = (0, 0, 1, 1),
    script: str = JOB,
) -> list[subprocess.Popen[bytes]]:
    """A job whose rank r runs on host ``ranks[r]`` and whose store is served by a process of its own."""
    common = {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(horovod.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
        "HOROVOD_SIZE": str(len(ranks)),
        "HOROVOD_JOB_ID": "test",
        "HOROVOD_SECRET_KEY": secrets.token_hex(32),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": addresses,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT,
        "HOROVOD_START_TIMEOUT": "20",
        **extra,
    }
    serve = (
        "import os, sys; from horovod.bootstrap.place.addresses import *\n"
        "from horovod.bootstrap.store.server import *\n"
        "key = bytes.fromhex(os.environ['HOROVOD_SECRET_KEY'])\n"
        "hosts = [address.host for address in own_addresses()]\n"
        "with StoreServer(key, hosts, int(sys.argv[1]), job='test'): sys.stdin.read()"
    )
    server = hosts.popen(0, sys.executable, "-c", serve, PORT, extra=common, stdin=subprocess.PIPE)
    workers = [
        hosts.popen(
            host,
            sys.executable,
            script,
            extra={**common, "HOROVOD_RANK": str(rank)},
            stdin=subprocess.PIPE,
        )
        for rank, host in enumerate(ranks)
    ]
    return [server, *workers]


def job(
    hosts: SimulatedHosts, addresses: str, extra: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    server, *workers = start(hosts, addresses, extra or {})
    said = []
    try:
        for worker in workers:
            out, err = worker.communicate(timeout=LIMIT_S)
            assert worker.returncode == 0, err.decode()
            said.append(json.loads(out))
    finally:
        server.communicate(timeout=LIMIT_S)
    for each in said:
        assert each["right"]
        assert each["groups"] == [[0, 1], [2, 3]]
    return said


def peers(said: list[dict[str, Any]]) -> set[str]:
    return {address for each in said for pair in each["peers"] for address in pair}


def test_ranks_use_the_network_between_hosts(two_hosts: SimulatedHosts) -> None:
    said = job(two_hosts, two_hosts.addresses[0], {"HOROVOD_NETWORK_STREAMS": "2"})
    assert [each["host"] for each in said] == [two_hosts.names[i] for i in (0, 0, 1, 1)]
    assert [each["local"] for each in said] == [[0, 2], [1, 2], [0, 2], [1, 2]]
    assert [each["cross"] for each in said] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert peers(said) == set(two_hosts.addresses)


@contextmanager
def interfaces_that_lead_nowhere(hosts: SimulatedHosts) -> Iterator[None]:
    """``dead0`` on every host, with numbers of one subnet, so that it seems to lead to the other; ``docker0``
    with the same number on all; and ``lone0`` in a network that the other host is not in.
    """
    try:
        for host in (0, 1):
            numbers = {
                "dead0": f"10.99.0.{host + 1}/24",
                "docker0": "172.17.0.1/16",
                "lone0": f"10.7{host}.0.1/24",
            }
            for name, number in numbers.items():
                on(hosts, host, f"link add {name} type veth peer name {name}x")
                on(hosts, host, f"link set {name}x up")
                on(hosts, host, f"addr add {number} dev {name}")
                on(hosts, host, f"link set {name} up")
        yield
    finally:
        for host in (0, 1):
            for name in ("dead0", "docker0", "lone0"):
                hosts.run(host, "ip", "link", "del", name)


def listening(hosts: SimulatedHosts, host: int) -> list[str]:
    """The address of every socket that listens, but for those of the ssh server and the test's store."""
    found = []
    for line in hosts.run(host, "cat", "/proc/net/tcp", "/proc/net/tcp6").stdout.decode().splitlines():
        words = line.split()
        number, _, port = words[1].partition(":")
        if words[3] == "0A" and int(port, 16) not in (22, int(PORT)):
            of_ipv4 = ".".join(str(byte) for byte in reversed(bytes.fromhex(number)))
            found.append(of_ipv4 if len(number) == 8 else number)
    return sorted(found)


def test_ranks_listen_only_on_interfaces_that_lead_to_those_that_dial_them(
    two_hosts: SimulatedHosts,
) -> None:
    extra = {"HOROVOD_SIZE": "4", "ATTACKED_RANK_WAITS": "3"}
    with interfaces_that_lead_nowhere(two_hosts):
        server, *workers = start(two_hosts, two_hosts.addresses[0], extra, script=HELD_UP)
        expected = sorted(2 * [two_hosts.addresses[0], "10.99.0.1"])
        deadline = time.monotonic() + 15.0
        while len(seen := listening(two_hosts, 0)) < len(expected):
            assert time.monotonic() < deadline, seen
        assert seen == expected
        assert listening(two_hosts, 1) == [], "the higher rank dials"
        assert workers[-1].stdin is not None
        workers[-1].stdin.write(b"come\n")
        workers[-1].stdin.flush()
        ends = [worker.communicate(timeout=LIMIT_S) for worker in workers]
        server.communicate(timeout=LIMIT_S)
        assert [out for out, _ in ends] == [b"formed\n"] * 4, ends


def test_an_interface_that_leads_nowhere_costs_a_moment_only(two_hosts: SimulatedHosts) -> None:
    with interfaces_that_lead_nowhere(two_hosts):
        addresses = f"10.99.0.9,{two_hosts.addresses[0]}"
        for selection in ("", "dead0,docker0,eth0"):
            said = job(two_hosts, addresses, {"HOROVOD_GLOO_IFACE": selection})
            assert peers(said) == set(two_hosts.addresses)


def test_when_no_way_works_every_address_is_named_with_its_reason(two_hosts: SimulatedHosts) -> None:
    with interfaces_that_lead_nowhere(two_hosts):
        # The kernel gives up by itself, after asking three times in vain who has the address.
        only = {"HOROVOD_GLOO_IFACE": "dead0", "HOROVOD_START_TIMEOUT": "60"}
        server, *workers = start(two_hosts, two_hosts.addresses[0], only)
        ends = [worker.communicate(timeout=LIMIT_S) for worker in workers]
        server.communicate(timeout=LIMIT_S)
    errors = [stderr.decode() for _, stderr in ends]
    assert all(worker.returncode == 1 for worker in workers)
    for error in errors:  # the first cause, on every rank
        assert re.search(r"cannot connect to rank \d on host \S+ at 10\.99\.0\.[12]:\d+: No route", error), (
            errors
        )


def test_hosts_without_ipv4(two_hosts: SimulatedHosts) -> None:
    numbers = ["fd00::1", "fd00::2"]
    for host in (0, 1):
        on(two_hosts, host, f"addr add {numbers[host]}/64 dev eth0 nodad")
    try:
        said = job(two_hosts, "[fd00::1]", {"HOROVOD_GLOO_IFACE": "fd00::/64"})  # chosen by subnet
        assert peers(said) == set(numbers)
        for host in (0, 1):
            on(two_hosts, host, f"addr del {two_hosts.addresses[host]}/24 dev eth0")
        said = job(two_hosts, f"{two_hosts.addresses[0]},fd00::1")
        assert peers(said) == set(numbers)
    finally:
        for host in (0, 1):
            two_hosts.run(host, "ip", "addr", "add", f"{two_hosts.addresses[host]}/24", "dev", "eth0")
            two_hosts.run(host, "ip", "addr", "del", f"{numbers[host]}/64", "dev", "eth0")


def test_a_chosen_interface_that_a_host_lacks_is_an_error_that_lists_its_own(
    two_hosts: SimulatedHosts,
) -> None:
    chosen = {"HOROVOD_GLOO_IFACE": "ib0,10.3.0.0/16", "HOROVOD_START_TIMEOUT": "5"}
    server, worker = start(two_hosts, two_hosts.addresses[0], {**chosen, "HOROVOD_SIZE": "2"}, ranks=(0,))
    error = worker.communicate(timeout=LIMIT_S)[1].decode()
    server.communicate(timeout=LIMIT_S)
    assert f"host {two_hosts.names[0]} has no address of these interfaces or subnets" in error
    assert f"eth0 ({two_hosts.addresses[0]})" in error


def rank_of(
    hosts: SimulatedHosts, rank: int, variables: Mapping[str, str], script: str = HELD_UP
) -> subprocess.Popen[bytes]:
    """Rank ``rank`` of another launcher's job, on the host of that number."""
    source = str(Path(horovod.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    extra = {"PYTHONPATH": path, "HOROVOD_START_TIMEOUT": "8", **variables}
    return hosts.popen(rank, sys.executable, script, extra=extra, stdin=subprocess.PIPE)


def test_a_store_told_by_a_card_ends_up_on_the_interface_that_other_hosts_used(
    two_hosts: SimulatedHosts, tmp_path: Path
) -> None:
    """Before anybody has spoken rank 0 cannot know which that will be."""

    def variables(rank: int) -> dict[str, str]:
        world = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "x@1"}
        return {**world, "XDG_CONFIG_HOME": str(tmp_path), "HOROVOD_RANK": ""}

    with interfaces_that_lead_nowhere(two_hosts):
        ranks = [rank_of(two_hosts, rank, variables(rank)) for rank in (0, 1)]
        try:
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == b"formed\n"
            deadline = time.monotonic() + 15.0
            while (seen := listening(two_hosts, 0)) != [two_hosts.addresses[0]]:
                assert time.monotonic() < deadline, seen
                time.sleep(0.05)  # nothing tells when a port is closed
            assert listening(two_hosts, 1) == []
        finally:
            for rank in ranks:
                error = rank.communicate(timeout=LIMIT_S)[1]
    assert [rank.returncode for rank in ranks] == [0, 0], error.decode()


def test_ranks_of_one_host_with_networks_of_their_own_are_told_what_to_set(
    two_hosts: SimulatedHosts, tmp_path: Path
) -> None:
    """Containers, for example, in each of which a wrapper starts one rank of torchrun."""

    def variables(rank: int) -> dict[str, str]:
        job = {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        world = {"TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "XDG_CONFIG_HOME": str(tmp_path)}
        return {**job, **world, **place, "HOROVOD_START_TIMEOUT": "2"}

    apart = [rank_of(two_hosts, rank, variables(rank), JOB) for rank in (0, 1)]
    errors = [rank.communicate(timeout=LIMIT_S)[1].decode() for rank in apart]
    assert all(rank.returncode == 1 for rank in apart)
    assert (
        "is this process in the same network namespace? If not, set HOROVOD_GLOO_RENDEZVOUS_ADDR" in errors[1]
    )
    told = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": two_hosts.addresses[0], "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT}
    together = [
        rank_of(two_hosts, rank, {**variables(rank), **told, "HOROVOD_START_TIMEOUT": "20"}, JOB)
        for rank in (0, 1)
    ]
    said = []
    for rank in together:
        out, err = rank.communicate(timeout=LIMIT_S)
        assert rank.returncode == 0, err.decode()
        said.append(json.loads(out))
    assert all(each["right"] and each["groups"] == [[0], [1]] for each in said)
    assert peers(said) == set(two_hosts.addresses)


def on(hosts: SimulatedHosts, host: int, words: str) -> None:
    done = hosts.run(host, "ip", *words.split())
    assert done.returncode == 0, done.stderr
