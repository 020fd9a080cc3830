"""The command that reaches another host, and what is said when it fails."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys

import pytest

from horovod.errors import ConfigError
from horovod.launch.agent_client.ssh_command import explain, may_pass, remote_shell
from horovod.launch.contracts.job import SshOptions
from horovod.launch.environment import for_other_hosts, interface_environment, rank_silence_s, silence_s
from horovod.launch.placement.addresses import names_of_this_machine, store_hosts


def test_words_of_the_user_come_before_ours_and_the_host_after() -> None:
    options = SshOptions(port=2222, identity_file="my key", arguments=("-l", "me", "-o", "BatchMode=no"))
    words = remote_shell("server1", options, {}, sys.executable, 10, 10.0)
    assert words[:5] == ["ssh", "-l", "me", "-o", "BatchMode=no"]
    assert words[5:9] == ["-p", "2222", "-i", "my key"]
    for option in (
        "BatchMode=yes",
        "PasswordAuthentication=no",
        "StrictHostKeyChecking=accept-new",
        "ForwardAgent=no",
        "ForwardX11=no",
    ):
        assert option in words[9:]
    assert words[-3:-1] == ["--", "server1"]


@pytest.mark.parametrize(("silence_s", "interval_s"), [(6.0, 5), (10.0, 5), (31.0, 11), (120.0, 40)])
def test_ssh_itself_waits_longer_than_we_do(silence_s: float, interval_s: int) -> None:
    words = remote_shell("server1", SshOptions(), {}, sys.executable, 10, silence_s)
    assert f"ServerAliveInterval={interval_s}" in words
    assert "ServerAliveCountMax=3" in words  # it ends after the fourth question without an answer


def test_agent_of_old_kubernetes_operators_takes_the_place_of_ssh() -> None:
    environ = {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}
    words = remote_shell("pod1", SshOptions(port=2222), environ, sys.executable, 10, 10.0)
    assert words[:2] == ["/etc/mpi/kubexec.sh", "pod1"]
    assert len(words) == 3
    other = remote_shell("pod1", SshOptions(), {"OMPI_MCA_plm_rsh_agent": "rsh"}, sys.executable, 10, 10.0)
    assert other[0] == "ssh"


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize("python", [sys.executable, "/no/such/python", "/odd 'name\" $x/python"])
def test_command_finds_a_python_and_gives_it_the_text(shell: str, python: str) -> None:
    text = b"import sys; print(sys.argv, sys.stdin.read())"
    command = remote_shell("host", SshOptions(), {}, python, len(text), 10.0)[-1]
    done = subprocess.run(
        [shell, "-c", command], input=text + b"the rest", capture_output=True, timeout=20, check=True
    )
    assert done.stdout == b"['-c', 'remote'] the rest\n"


def test_command_without_any_python_is_told_apart() -> None:
    command = shlex.split(remote_shell("host", SshOptions(), {}, "/no/such/python", 1, 10.0)[-1])
    command[3] = command[3].replace("/usr/bin/python3", "/no/python3")
    done = subprocess.run(command[1:], env={"PATH": "/nowhere"}, timeout=20, check=False)
    assert "no Python is found there" in explain(done.returncode, "")


@pytest.mark.parametrize(
    ("status", "said", "words", "again"),
    [
        (255, "me@host: Permission denied (publickey).\n", "authorized_keys", False),
        (255, "Host key verification failed.\n", "ssh-keygen -R", False),
        (255, "ssh: Could not resolve hostname host: Name or service not known\n", "spelling", True),
        (255, "ssh: connect to host host port 22: Connection refused\n", "-p names another port", True),
        (255, "ssh: connect to host host port 22: Connection timed out\n", "firewall", True),
        (255, "ssh: connect to host host port 22: No route to host\n", "firewall", True),
        (255, "kex_exchange_identification: Connection closed by remote host\n", "ended it", True),
        (254, "sh: 0: Cannot fork\n", "no room for a process", False),
        (1, "This account is currently not available.\n", "status 1: This account", False),
        (255, "", "it said nothing", False),
        (-9, "", "ended by signal 9", False),
    ],
)
def test_failures_are_explained_and_tried_again_if_that_may_help(
    status: int, said: str, words: str, again: bool
) -> None:
    assert words in explain(status, said)
    assert ".." not in explain(status, said)
    assert may_pass(status, said) is again


def test_only_the_last_lines_are_quoted() -> None:
    said = "".join(f"line {number}\n" for number in range(100))
    assert "line 95" not in explain(255, said)
    assert "line 99" in explain(255, said)


def test_environment_for_other_hosts_leaves_out_what_means_this_one() -> None:
    environment = {"A": "1", "HOME": "/h/me", "SSH_AUTH_SOCK": "/x", "NVIDIA_CUDA_VISIBLE_DEVICES": "0"}
    assert for_other_hosts(environment) == ({"A": "1"}, {"HOME": "/h/me"})


def test_interfaces_become_variables() -> None:
    assert interface_environment(()) == {}
    assert interface_environment(("eth1", "10.0.0.0/8")) == {
        "HOROVOD_GLOO_IFACE": "eth1,10.0.0.0/8",
        "NCCL_SOCKET_IFNAME": "eth1",
    }


def test_silence_of_hosts_is_twice_that_of_ranks() -> None:
    variable = "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS"
    for options, inherited, of_ranks_s, of_hosts_s in (
        ({}, {}, 5, 10),
        ({}, {variable: "20"}, 20, 40),
        ({variable: "1"}, {variable: "20"}, 3, 6),
        ({}, {variable: "0"}, 0, 10),
    ):
        assert rank_silence_s(options, inherited) == of_ranks_s
        assert silence_s(options, inherited) == of_hosts_s


def test_the_store_is_served_where_other_hosts_see_this_machine() -> None:
    assert store_hosts((), ["127.0.0.1"]) == ["127.0.0.1"]
    assert store_hosts(("lo",), []) == ["127.0.0.1", *(["::1"] if has_ipv6() else [])]


def test_interfaces_that_this_machine_lacks_give_way_to_what_others_see() -> None:
    assert store_hosts(("ib7",), ["127.0.0.1"]) == ["127.0.0.1"]
    with pytest.raises(ConfigError, match="ib7"):
        store_hosts(("ib7",), [])


def test_names_that_nobody_knows_are_elsewhere() -> None:
    names = ("localhost", socket.gethostname(), "no.such.host.invalid")
    assert names_of_this_machine(names) == {"localhost", socket.gethostname()}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
