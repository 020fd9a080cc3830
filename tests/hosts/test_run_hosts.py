"""``horovod.run`` on several hosts, from a script beside modules that no other host has."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.simulated import SimulatedHosts

import horovod

LIMIT_S = 60.0

BESIDE = """
    import dataclasses, os, socket
    FROM = __file__

    @dataclasses.dataclass
    class Place:
        rank: int
        host: str
        total: float

    def place(numbers):
        import later  # is not loaded when the function is sent
        return Place(int(os.environ["HOROVOD_RANK"]), socket.gethostname(), later.total(numbers))

    def fail():
        if int(os.environ["HOROVOD_RANK"]) == 1:
            raise later_error()

    def later_error():
        import later
        return later.Unlucky("of the function")
"""
LATER = """
    class Unlucky(Exception):
        pass

    def total(numbers):
        return float(numbers.sum())
"""
SCRIPT = """
    import json, sys
    import numpy as np
    import horovod
    import beside

    hosts = sys.argv[1]
    numbers = np.arange(1 << 20, dtype=np.float64)
    try:
        horovod.run(beside.place, (numbers,), num_proc=3, hosts=hosts)
    except horovod.errors.LaunchError as refusal:
        said = {"refused": str(refusal)}  # to unpickle what another host says would run its code here
    results = horovod.run(beside.place, (numbers,), num_proc=3, hosts=hosts, unpickle_results=True)
    said |= {
        "same class": all(isinstance(result, beside.Place) for result in results),
        "places": [[result.rank, result.host] for result in results],
        "totals": [result.total == float(numbers.sum()) for result in results],
    }
    try:
        horovod.run(beside.fail, num_proc=3, hosts=hosts, unpickle_results=True)
    except horovod.errors.WorkerFailed as failure:
        said["failed"] = [failure.rank, failure.host, type(failure.__cause__).__name__, str(failure)]
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def hosts(simulation: None) -> Iterator[SimulatedHosts]:
    with SimulatedHosts(2, private_tmp=True) as hosts:
        yield hosts


def run_script(hosts: SimulatedHosts, placed: str) -> dict[str, Any]:
    """On the first host, from a folder that only that host has."""
    files = {"beside.py": BESIDE, "later.py": LATER, "script.py": SCRIPT}
    folder = "/tmp/notebooks"  # of that host alone
    for name, text in files.items():
        made = hosts.run(
            0, sys.executable, "-c",
            "import os, sys; os.makedirs(sys.argv[1], exist_ok=True);"
            "open(os.path.join(sys.argv[1], sys.argv[2]), 'w').write(sys.argv[3])",
            folder, name, textwrap.dedent(text),
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
    done = hosts.run(
        0, sys.executable, f"{folder}/script.py", placed, cwd="/", timeout_s=LIMIT_S,
        extra={"PYTHONPATH": str(Path(horovod.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_functions_results_and_failures_travel_between_hosts(hosts: SimulatedHosts) -> None:
    first, second = hosts.names
    before = hosts.run(1, "ls", "/tmp").stdout
    said = run_script(hosts, f"{first}:1,{second}:2")
    assert said["places"] == [[0, first], [1, second], [2, second]]
    assert said["totals"] == [True] * 3
    assert said["same class"]
    assert "the result of rank 1, which runs on another host, is pickled" in said["refused"]
    rank, host, kind, message = said["failed"]
    assert (rank, host, kind) == (1, second, "Unlucky")
    assert "in fail" in message
    assert "raise later_error()" in message  # the source travelled along
    assert hosts.run(1, "ls", "/tmp").stdout == before, "something was written on the other host"
