"""The system's ssh client: the command that starts an agent on another host, and what its failures mean."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from horovod.launch.contracts.job import SshOptions
from horovod.runtime.ending import harmless

__all__ = ["NO_SSH", "explain", "may_pass", "own_shell", "remote_shell", "too_late"]

_AGENT = "/etc/mpi/kubexec.sh"
_AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"
_NO_PYTHON = 86  # our own status, which neither a shell nor ssh uses
_CONNECTION_FAILED = 255  # ssh's own; any other status is that of the remote command
_CONNECT_TIMEOUT_S = 10
# The client ends by itself when it has asked so often in vain: nobody else would end it if we were killed
# while the host was out of reach. Before that the launcher notices the silence.
_ALIVE_COUNT = 3
_ALIVE_INTERVAL_S = 5  # at least
_SHOWN_LINES = 4

NO_SSH = (
    ". There is no ssh client on PATH here. Install one (openssh-client), or let mpirun or srun start the "
    "ranks: --launcher mpirun"
)
"""Advice behind the system's word where ``ssh`` is not found."""

_HINTS: Sequence[tuple[str, bool, str]] = (
    # What ssh says; whether trying again may help; what to do about it.
    (r"Permission denied", False, "Name the right key with -i, or add it to authorized_keys there."),
    (r"Host key verification failed", False, "Its key changed: ssh-keygen -R forgets the old one."),
    (r"UNPROTECTED PRIVATE KEY|bad permissions", False, "The key file must be readable by you alone."),
    (r"resolve hostname", True, "Check its spelling in -H or the host file."),
    (r"Connection refused", True, "No ssh server listens there; -p names another port."),
    (r"timed out|No route to host|unreachable", True, "It is down, or a firewall stands between."),
    (r"connection (reset|closed)|kex_exchange|banner exchange", True, "Its ssh server ended it."),
    (r"cannot fork|fork.*(failed|unavailable)|Cannot allocate memory", True, "It has no room for a process."),
)


def remote_shell(
    host: str,
    options: SshOptions,
    environ: Mapping[str, str],
    python: str,
    agent_bytes: int,
    silence_s: float,
) -> list[str]:
    """The command that runs an agent on `host`; its text, `agent_bytes` long, goes to standard input.

    Args:
        environ: of the launcher; may ask for the agent that old Kubernetes operators bring along.
        python: the interpreter to try first. Any other that is found there does as well.
        silence_s: the client must not end a connection for less.
    """
    load = _load(agent_bytes)
    candidates = " ".join(shlex.quote(candidate) for candidate in (python, "python3", "/usr/bin/python3"))
    # Whatever the login shell is, from here on it is a POSIX one. No newlines and no exclamation marks: csh.
    script = (
        f'for p in {candidates}; do if command -v "$p" >/dev/null 2>&1; then '
        f'exec "$p" -I -S -c "$0" remote; fi; done; exit {_NO_PYTHON}'
    )
    command = f"exec /bin/sh -c {shlex.quote(script)} {shlex.quote(load)}"
    if environ.get(_AGENT_VARIABLE) == _AGENT:
        return [_AGENT, host, command]
    words = ["ssh", *options.arguments]  # the user's words come first: ssh takes the first of each
    if options.port is not None:
        words += ["-p", str(options.port)]
    if options.identity_file is not None:
        words += ["-i", options.identity_file]
    for option in (
        "BatchMode=yes",
        "PasswordAuthentication=no",
        "StrictHostKeyChecking=accept-new",  # new keys, but no changed ones: the key of the job goes there
        f"ConnectTimeout={_CONNECT_TIMEOUT_S}",
        f"ServerAliveInterval={max(_ALIVE_INTERVAL_S, math.ceil(silence_s / _ALIVE_COUNT))}",
        f"ServerAliveCountMax={_ALIVE_COUNT}",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",  # the user's keys are of no use there, but to root of that host
        "ForwardX11=no",
        "LogLevel=ERROR",
    ):
        words += ["-o", option]
    return [*words, "-T", "--", host, command]


def own_shell(python: str, agent_bytes: int) -> list[str]:
    """The command that runs such an agent on this machine, in the same way."""
    return [python, "-I", "-S", "-c", _load(agent_bytes), "remote"]


def _load(agent_bytes: int) -> str:
    return f"import sys;exec(compile(sys.stdin.buffer.read({agent_bytes}),'agent','exec'))"


def explain(status: int, said: str) -> str:
    """Why no agent runs there: what was said last, and what to do about it.

    Args:
        status: that the client ended with; negative for a signal.
        said: what it wrote to its standard error.
    """
    if status == _NO_PYTHON:
        return "no Python is found there: neither this one by its path, nor python3 (3.7 or newer)"
    if status == 0:
        return "the agent there got no text: what takes the place of ssh must pass standard input on"
    quoted = _quoted(said)
    hint = next((hint for pattern, _, hint in _HINTS if re.search(pattern, said, re.IGNORECASE)), "")
    if status < 0:
        what = f"ssh was ended by signal {-status}"
    elif status == _CONNECTION_FAILED:
        what = "ssh failed"
    else:
        what = f"the command there ended with status {status}"
    why = f"{what}: {quoted or 'it said nothing'}"
    return f"{why.removesuffix('.')}. {hint}" if hint else why


def too_late(limit_s: float, said: str) -> str:
    """Why a host that has said only this is given up."""
    quoted = _quoted(said)
    return f"no answer within {limit_s:g} s" + (f"; before that: {quoted}" if quoted else "")


def _quoted(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(harmless(line) for line in lines[-_SHOWN_LINES:])


def may_pass(status: int, said: str) -> bool:
    """True if trying again may help: a host that is booting, a name that is not known yet."""
    return status == _CONNECTION_FAILED and any(
        passing and re.search(pattern, said, re.IGNORECASE) for pattern, passing, _ in _HINTS
    )
