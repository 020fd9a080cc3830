"""Jobs on several hosts, by ssh: ranks start where they belong, with what they need, and are heard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.jobs import LIMIT_S, PYTHON, horovodrun, left_behind, running, slots
from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import COMMAND, environment

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

ALLREDUCE = """
import numpy
from horovod import _core
from horovod.runtime import lifecycle
runtime = lifecycle.start()
value = numpy.full(4, runtime.topology.rank + 1.0)
total = numpy.empty(4)
engine = runtime.engine
engine.submit(0, "x", (value.ctypes.data, total.ctypes.data, 9, (4,)), 1, 1.0, 1.0, 0, 0, 2)
print(total[0], *runtime.topology.hosts, flush=True)
lifecycle.stop()
"""


@pytest.fixture(autouse=True)
def nothing_is_left(two_hosts: SimulatedHosts) -> Iterator[None]:
    yield
    assert left_behind(two_hosts) == []


def test_ranks_of_two_hosts_meet_and_add_up(two_hosts: SimulatedHosts) -> None:
    done = horovodrun(two_hosts, "-np", "4", "-H", slots(two_hosts, 2, 2), PYTHON, "-c", ALLREDUCE)
    assert done.returncode == 0, done.stderr.decode()
    one, other = two_hosts.names
    expected = " ".join(["10.0", one, one, other, other])
    assert sorted(done.stdout.decode().splitlines()) == [f"[{rank}]<stdout>:{expected}" for rank in range(4)]


def test_the_launching_host_need_not_take_part(two_hosts: SimulatedHosts) -> None:
    there = slots(two_hosts, 2, first=1)
    done = horovodrun(two_hosts, "-np", "2", "-H", there, PYTHON, "-c", ALLREDUCE)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"3.0") == 2


def test_places_directory_and_environment_of_ranks(two_hosts: SimulatedHosts, tmp_path: Path) -> None:
    odd = "a  b\n'c' \"d\" $HOME \\ \xe9"
    show = (
        'printf "%s|" "$HOROVOD_RANK" "$HOROVOD_LOCAL_RANK" "$HOROVOD_CROSS_RANK" "$(hostname)" "$PWD" "$1"; '
    )
    show += 'printf "%s" "$ODD" | od -An -tx1 | tr -d " \\n"; echo "|$CUDA_VISIBLE_DEVICES"'
    done = horovodrun(
        two_hosts,
        *("-np", "3", "-H", slots(two_hosts, 1, 2), "sh", "-c", show, "zero", "*  '\"$x"),
        extra={"ODD": odd, "CUDA_VISIBLE_DEVICES": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr.decode()
    one, other = two_hosts.names
    places = [("0", "0", "0", one), ("1", "0", "1", other), ("2", "1", "0", other)]
    same = f"{tmp_path}|*  '\"$x|{os.fsencode(odd).hex()}|"
    lines = [
        f"[{place[0]}]<stdout>:{'|'.join(place)}|{same}{'1' if place[0] == '0' else ''}" for place in places
    ]
    assert sorted(done.stdout.decode().splitlines()) == lines


def test_directory_that_a_host_lacks_is_told(two_hosts: SimulatedHosts) -> None:
    words = [*COMMAND, "-np", "1", "-H", slots(two_hosts, 1, first=1), "true"]
    there = 'mkdir -p /dev/shm/mine && cd /dev/shm/mine && exec "$@"'
    done = two_hosts.run(0, "sh", "-c", there, "sh", *words, extra=environment())
    assert done.returncode == 0
    assert f"host {two_hosts.names[1]} has no directory /dev/shm/mine" in done.stderr.decode()


def test_lines_of_all_hosts_stay_whole_and_complete(two_hosts: SimulatedHosts, tmp_path: Path) -> None:
    program = (
        "import os,sys\nr=os.environ['HOROVOD_RANK']\nfor i in range(4000): print(r*500, i, flush=False)"
    )
    done = horovodrun(
        two_hosts,
        *("-np", "4", "-H", slots(two_hosts, 2, 2), "--output-filename", str(tmp_path)),
        *(PYTHON, "-c", program),
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    for rank in range(4):
        expected = [f"[{rank}]<stdout>:{str(rank) * 500} {number}" for number in range(4000)]
        assert [line for line in lines if line.startswith(f"[{rank}]")] == expected
        assert (tmp_path / f"rank.{rank}" / "stdout").read_text().splitlines() == expected
    assert len(lines) == 4 * 4000


def test_only_addresses_that_are_in_use_are_served(two_hosts: SimulatedHosts) -> None:
    show = "echo $HOROVOD_GLOO_RENDEZVOUS_ADDR $HOROVOD_GLOO_IFACE $NCCL_SOCKET_IFNAME; sleep 60"
    words = ("-np", "2", "-H", slots(two_hosts, 1, 1), "--network-interfaces", "eth0", "sh", "-c", show)
    with running(two_hosts, *words) as job:
        assert set(job.by_rank(2).values()) == {f"{two_hosts.addresses[0]} eth0 eth0"}
        listening = two_hosts.run(0, "ss", "-Hltn").stdout.decode().splitlines()
        assert {line.split()[3].rpartition(":")[0] for line in listening} == {two_hosts.addresses[0]}


def test_ranks_meet_over_ipv6(two_hosts: SimulatedHosts) -> None:
    numbers = [f"fd77::{number}" for number in (1, 2)]
    for host, number in enumerate(numbers):
        two_hosts.run(host, "ip", "address", "add", f"{number}/64", "dev", "eth0", "nodad")
    config = f"{two_hosts.environment['SIM_DIR']}/{two_hosts.names[1]}/sshd_config"
    listen = ("-p", "2222", "-o", f"ListenAddress=[{numbers[1]}]:2222")
    assert two_hosts.run(1, "/usr/sbin/sshd", "-f", config, *listen).returncode == 0
    done = horovodrun(
        two_hosts,
        *("-np", "2", "-H", f"{two_hosts.names[0]}:1,[{numbers[1]}]:1", "--ssh-port", "2222"),
        *("--verbose", PYTHON, "-c", ALLREDUCE),
    )
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert f"serving the store at [{numbers[0]}]," in said
    assert done.stdout.count(b"3.0") == 2


def test_one_machine_with_two_names_is_told(two_hosts: SimulatedHosts) -> None:
    alias = f"{two_hosts.names[1]}-other"
    two_hosts.alias(1, alias)
    done = horovodrun(two_hosts, "-np", "2", "-H", f"{two_hosts.names[1]}:1,{alias}:1", "true")
    assert done.returncode == 0, done.stderr.decode()
    assert f"{two_hosts.names[1]} and {alias} are one machine" in done.stderr.decode()


def test_the_key_is_on_no_command_line_of_any_host(two_hosts: SimulatedHosts) -> None:
    show = "echo $HOROVOD_SECRET_KEY; sleep 60"
    secret = {"MY_PASSWORD": "very secret words"}
    words = ("-np", "2", "-H", slots(two_hosts, 1, 1), "sh", "-c", show)
    with running(two_hosts, *words, extra=secret) as job:
        keys = set(job.by_rank(2).values())
        assert len(keys) == 1
        key = keys.pop().encode()
        assert len(bytes.fromhex(key.decode())) == 32
        for host in range(2):
            lines = two_hosts.run(host, "sh", "-c", "cat /proc/[0-9]*/cmdline").stdout
            assert b"sleep" in lines
            assert key not in lines
            assert b"very secret words" not in lines


def test_hosts_need_not_share_a_file_system(simulation: None) -> None:
    with SimulatedHosts(2, private_tmp=True) as hosts:
        show = "open('/tmp/mine', 'x'); print('made')"
        done = horovodrun(hosts, "-np", "2", "-H", slots(hosts, 1, 1), PYTHON, "-c", show, cwd=Path("/"))
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.count(b"made") == 2


COUNTS = (
    "import os, sys; print(os.environ['HOROVOD_RANK'], 'reads', len(sys.stdin.buffer.read()), flush=True)"
)
WHO = b"import os, sys; print(os.environ['HOROVOD_RANK'], sys.argv[1:], flush=True)"


def test_standard_input_reaches_ranks_of_another_host(two_hosts: SimulatedHosts, tmp_path: Path) -> None:
    """Rank 0 is on the other host. It may read all, a script that all ranks run, or nothing."""
    other, one = reversed(two_hosts.names)
    data = tmp_path / "data"

    def run(given: bytes, *words: str) -> list[str]:
        data.write_bytes(given)
        line = [*COMMAND, "-np", "2", "-H", f"{other}:1,{one}:1", *words]
        there = f'exec "$@" < {data}'
        done = two_hosts.run(0, "sh", "-c", there, "sh", *line, extra=environment(), timeout_s=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return sorted(line.partition(">:")[2] for line in done.stdout.decode().splitlines())

    assert run(bytes(range(256)) * 4000, PYTHON, "-c", COUNTS) == ["0 reads 1024000", "1 reads 0"]
    assert run(WHO, PYTHON, "-", "word") == ["0 ['word']", "1 ['word']"]
    assert run(bytes(3_000_000), "sh", "-c", "echo went on") == ["went on", "went on"]
