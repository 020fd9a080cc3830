"""Several hosts on this machine: each has a host name, network, process table, /dev/shm and ssh server.

``netns_hosts.sh`` makes them of namespaces; nothing inside reaches the machine's own network. Several sets
can exist at once: names and state are the set's own.

    with SimulatedHosts(2) as hosts:
        hosts.run(0, "hostname")
        hosts.cut(1)
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["SimulatedHosts", "clear_leftovers", "why_not"]

_SCRIPT = Path(__file__).with_name("netns_hosts.sh")
_NEEDED = (Path(__file__).resolve().parents[2], Path(sys.prefix))
_LIMIT_S = 60.0
_FOLDER = "farandole-hosts-"


def why_not() -> str:
    """Why there can be no simulated hosts on this machine; empty if there can."""
    if os.geteuid() != 0:
        return "simulated hosts need root"
    parts = {
        "ip": "iproute2",
        "nsenter": "util-linux",
        "unshare": "util-linux",
        "ssh": "openssh-client",
        "/usr/sbin/sshd": "openssh-server",
    }
    missing = sorted({package for part, package in parts.items() if shutil.which(part) is None})
    if missing:
        return f"simulated hosts need {', '.join(missing)}"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False, timeout=_LIMIT_S)
    return "" if probe.returncode == 0 else "this system does not allow network namespaces"


def clear_leftovers() -> None:
    """Destroy the hosts of processes that were killed, which could not do it themselves."""
    for entry in Path("/run/netns").glob("sim*-h*x*n*"):
        if _has_ended(entry.name):
            _end_all_in(entry.name)
            subprocess.run(
                ["ip", "netns", "del", entry.name], capture_output=True, check=False, timeout=_LIMIT_S
            )
    for folder in [*Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"), *Path("/var/tmp").glob(f"{_FOLDER}*")]:
        if _has_ended(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _has_ended(name: str) -> bool:
    """Whether the process that gave ``name`` to something of its own, which holds its id, is no more."""
    maker = re.search(r"-h([0-9a-f]+)x", name)
    return maker is not None and not Path("/proc", str(int(maker[1], 16))).exists()


def _end_all_in(namespace: str) -> None:
    """Kill what runs there, and wait until it has ended."""
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    ending = []
    for process in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            ending.append(os.pidfd_open(int(process)))
            signal.pidfd_send_signal(ending[-1], signal.SIGKILL)
    for descriptor in ending:
        select.select([descriptor], [], [], _LIMIT_S)
        os.close(descriptor)


class SimulatedHosts:
    """``count`` hosts, named ``names``, with addresses ``addresses``; destroyed at the end of the block.

    Those of processes that were killed are destroyed when the next ones are made.

    Args:
        count: how many.
        rate: of every link in both directions, as ``tc`` writes it: ``1gbit``; ``none``: unlimited.
        private_tmp: every host has a ``/tmp`` of its own. This project, and the Python that runs, can be
            read also where they lie there.
        share_shm: all hosts have one ``/dev/shm``.
    """

    _made = 0

    def __init__(
        self, count: int, *, rate: str = "none", private_tmp: bool = False, share_shm: bool = False
    ) -> None:
        SimulatedHosts._made += 1
        self._prefix = f"h{os.getpid():x}x{SimulatedHosts._made:x}n"
        self.names = [f"{self._prefix}{number}" for number in range(1, count + 1)]
        self.addresses = [f"10.77.0.{number}" for number in range(1, count + 1)]
        self._rate = rate
        # With a private /tmp the state must lie elsewhere.
        self._folder = Path(
            tempfile.mkdtemp(prefix=f"{_FOLDER}{self._prefix}-", dir="/var/tmp" if private_tmp else None)
        )
        self._environment = {
            **os.environ,
            "SIM_DIR": str(self._folder / "simhosts"),
            "SIM_PREFIX": self._prefix,
            "SIM_PRIVATE_TMP": "1" if private_tmp else "0",
            "SIM_KEEP": "".join(f"{path}:" for path in _NEEDED if path.is_relative_to("/tmp")),
            "SIM_SHARE_SHM": "1" if share_shm else "0",
        }

    def __enter__(self) -> SimulatedHosts:
        clear_leftovers()
        try:
            self._call("up", str(len(self.names)), self._rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything on the hosts, and them. Idempotent."""
        self._call("down")
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """What other scripts that work on these hosts need: ``SIM_DIR`` and ``SIM_PREFIX``."""
        return {name: value for name, value in self._environment.items() if name.startswith("SIM_")}

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """The command that runs ``words`` on host number ``host`` (from 0), to be started with ``popen``."""
        return [str(_SCRIPT), "exec", self.names[host], *words]

    def popen(
        self,
        host: int,
        *words: str,
        extra: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start ``words`` on a host. Ending the returned process does not end what runs on the host: the
        end of the block does, and ``kill``.
        """
        return subprocess.Popen(
            self.command(host, words),
            env={**self._environment, **(extra or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def run(
        self,
        host: int,
        *words: str,
        extra: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout_s: float = _LIMIT_S,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``words`` on a host to their end."""
        return subprocess.run(
            self.command(host, words),
            env={**self._environment, **(extra or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def cut(self, host: int) -> None:
        """Pull its cable: silence, the processes live on."""
        self._call("cut", self.names[host])

    def mend(self, host: int) -> None:
        self._call("mend", self.names[host])

    def block(self, host: int, to: int) -> None:
        """Let a host drop what it would send to another one, as a rule of its own firewall does."""
        self._call("block", self.names[host], self.names[to])

    def unblock(self, host: int, to: int) -> None:
        self._call("unblock", self.names[host], self.names[to])

    def reset(self, host: int, to: int) -> None:
        """End a host's connections to another one, which a firewall may do: the processes live on."""
        self._call("reset", self.names[host], self.names[to])

    def kill(self, host: int) -> None:
        """SIGKILL to every process there; the machine still answers for its closed connections."""
        self._call("kill", self.names[host])

    def power_off(self, host: int) -> None:
        """Silence, and nothing runs there any more."""
        self._call("poweroff", self.names[host])

    def boot(self, host: int) -> None:
        """Start it again after ``kill`` or ``power_off``."""
        self._call("boot", self.names[host])

    def pause(self, host: int) -> None:
        """SIGSTOP to every process there."""
        self._call("pause", self.names[host])

    def resume(self, host: int) -> None:
        self._call("resume", self.names[host])

    def rate(self, host: int, rate: str) -> None:
        """Change the speed of its link."""
        self._call("rate", self.names[host], rate)

    def loss(self, host: int, percent: int) -> None:
        """Drop so many of the packets of its link, at random, in both directions."""
        self._call("loss", self.names[host], str(percent))

    def alias(self, host: int, *names: str) -> None:
        """Further names of a host, known on all."""
        self._call("alias", self.names[host], *names)

    def _call(self, *words: str) -> None:
        # Its standard streams must not be pipes of ours: the hosts' own processes keep them open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [str(_SCRIPT), *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=_LIMIT_S,
                check=False,
            )
            said.seek(0)
            if done.returncode != 0:
                text = said.read().decode(errors="replace")
                raise RuntimeError(f"netns_hosts.sh {words[0]} ended with {done.returncode}: {text}")
