"""Ranks that ``horovodrun`` started end with it, whatever ends it and whenever: nothing is left on any host.

The other cells of the matrix are in ``test_failures.py``. ``FARANDOLE_FULL_MATRIX=1`` runs all of these.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.jobs import LIMIT_S, PYTHON, left_behind, processes, running, signal_processes
from tests.hosts.simulated import SimulatedHosts
from tests.launch.launching import COMMAND

pytestmark = pytest.mark.timeout(4 * LIMIT_S)

LAUNCHER = 3
RANKS = (2, 2, 1)
SCRIPT = Path(__file__).with_name("failing_rank.py")
STANDS_STILL = 2
ITS_HOST = 1

PART = [("kill", "small"), ("cut", "large"), ("power-off", "negotiation"), ("pause", "init")]
ALL = [
    (fault, phase)
    for fault in ("kill", "pause", "cut", "power-off")
    for phase in ("init", "negotiation", "small", "large", "shutdown")
]


@pytest.fixture
def launching_host(four_hosts: SimulatedHosts) -> Iterator[SimulatedHosts]:
    """Four hosts, of which the last one launches; afterwards all are well again."""
    yield four_hosts
    four_hosts.power_off(LAUNCHER)
    four_hosts.boot(LAUNCHER)


@pytest.mark.parametrize(("fault", "phase"), ALL if os.environ.get("FARANDOLE_FULL_MATRIX") else PART)
def test_ranks_end_with_their_launcher(launching_host: SimulatedHosts, fault: str, phase: str) -> None:
    hosts = launching_host
    where = ",".join(f"{name}:{count}" for name, count in zip(hosts.names, RANKS, strict=False))
    extra = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3", "FAILING_VICTIM": str(STANDS_STILL)}
    words = ("-np", "5", "-H", where, PYTHON, str(SCRIPT), phase)
    with running(hosts, *words, host=LAUNCHER, extra=extra) as job:
        awaited = 1 if phase == "init" else 5
        while awaited:
            line = job.lines(1)[0]
            if phase == "shutdown" and '"end"' in line:  # this one is through before others are ready
                continue
            assert '"ready"' in line, line
            awaited -= 1
        assert any(str(SCRIPT) in each for each in processes(hosts, ITS_HOST)), "the fault would meet nobody"
        if fault == "kill":
            assert signal_processes(hosts, LAUNCHER, " ".join(COMMAND), signal.SIGKILL)
        elif fault == "pause":
            assert signal_processes(hosts, LAUNCHER, " ".join(COMMAND), signal.SIGSTOP)
        elif fault == "cut":
            hosts.cut(LAUNCHER)
        else:
            hosts.power_off(LAUNCHER)
        assert left_behind(hosts, 0, 1, 2, timeout_s=LIMIT_S) == []
        if fault == "cut":
            hosts.mend(LAUNCHER)
        if fault == "pause":
            job.process.send_signal(signal.SIGCONT)  # whoever entered the host stops with what it runs there
        if fault != "power-off":
            signal_processes(hosts, LAUNCHER, " ".join(COMMAND), signal.SIGKILL)
