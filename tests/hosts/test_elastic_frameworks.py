"""Training of each framework on hosts with two slots each: one is killed, comes back, and the first one goes.

``FARANDOLE_FULL_MATRIX=1`` runs all of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.elastic_jobs import discovery, elastic, name
from tests.hosts.jobs import left_behind
from tests.hosts.simulated import SimulatedHosts

SLOTS = 2
IMPORTS_S = 180.0
"""For six processes that import a framework on a busy machine."""

RANK = str(Path(__file__).with_name("elastic_framework_rank.py"))
QUICK = {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "3", "TF_CPP_MIN_LOG_LEVEL": "2"}
WAYS = {
    "torch": {},
    "tensorflow": {},
    "keras-tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "keras-torch": {"KERAS_BACKEND": "torch"},
    **({"keras-jax": {"KERAS_BACKEND": "jax"}} if importlib.util.find_spec("jax") else {}),
}

pytestmark = [
    pytest.mark.timeout(6 * IMPORTS_S),
    pytest.mark.skipif(not os.environ.get("FARANDOLE_FULL_MATRIX"), reason="FARANDOLE_FULL_MATRIX=1 runs it"),
]


@pytest.fixture
def hosts(simulation: None) -> Iterator[SimulatedHosts]:
    with SimulatedHosts(3) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_hosts_die_come_and_go(hosts: SimulatedHosts, tmp_path: Path, way: str) -> None:
    name(hosts, tmp_path, 0, 1, slots=SLOTS)
    options = (*discovery(tmp_path, 2 * SLOTS), "--blacklist-cooldown-range", "1", "2")
    program = (RANK, way.partition("-")[0])
    with elastic(hosts, tmp_path, *options, program=program, extra={**QUICK, **WAYS[way]}) as job:
        job.world(2 * SLOTS, IMPORTS_S)
        hosts.kill(1)
        after = job.world(SLOTS)
        assert {member["host"] for member in after["members"]} == {hosts.names[0]}
        hosts.boot(1)
        again = job.world(2 * SLOTS, IMPORTS_S)
        assert [member["host"] for member in again["members"]] == [
            *2 * [hosts.names[0]],
            *2 * [hosts.names[1]],
        ]
        name(hosts, tmp_path, 0, 1, 2, slots=SLOTS)
        job.world(3 * SLOTS, IMPORTS_S)
        name(hosts, tmp_path, 1, 2, slots=SLOTS)
        last = job.world(2 * SLOTS)
        assert [member["host"] for member in last["members"]] == [
            *2 * [hosts.names[1]],
            *2 * [hosts.names[2]],
        ]
        said = job.finish()
    ends = re.findall(r"ends with ([0-9a-f]{64})", said)
    assert len(ends) == 2 * SLOTS, said
    assert len(set(ends)) == 1, said
    begun = [int(step) for step in re.findall(f"trains {3 * SLOTS} from step ([0-9]+)", said)]
    assert len(begun) == 3 * SLOTS, said
    assert len(set(begun)) == 1, said
    assert begun[0] > 0, said  # those that came later have got the state
    assert left_behind(hosts) == []
