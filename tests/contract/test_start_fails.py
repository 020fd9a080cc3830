"""A rank whose engine cannot be set up: all others are told why, in `init()` or, at the last step, by the
engines that run already.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import ctypes, json, os, resource, sys
import numpy as np
from horovod import _core
from horovod.runtime import lifecycle
from horovod.errors import HorovodInternalError

rank = int(os.environ["HOROVOD_RANK"])


def without_memory(call, *arguments):
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size, limits[1]))
    try:
        call(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


class Poor(_core.Engine):
    pass


def poor(name):
    call = getattr(_core.Engine, name)
    setattr(Poor, name, lambda self, *arguments: without_memory(call, self, *arguments))


class Core:
    Engine = _core.Engine
    segment_bytes, segment_base_bytes = _core.segment_bytes, _core.segment_base_bytes
    missing_cipher = _core.missing_cipher


if rank == 1:
    poor(sys.argv[1])
    Core.Engine = Poor
try:
    engine = lifecycle.start(core=Core).engine
    array = np.ones(3)
    at = array.ctypes.data
    engine.submit(_core.ALLREDUCE, "x", (at, at, 9, (3,)), 1, 1.0, 1.0, 0, 0, _core.BLOCKING)
except HorovodInternalError as error:
    print("told", json.dumps([rank, error.rank, error.host, str(error)]), flush=True)
    raise
"""


@pytest.mark.parametrize(
    ("step", "groups"), [("own_segment", "auto"), ("start", "auto"), ("start", "single")]
)
def test_everybody_hears_why_an_engine_could_not_start(tmp_path: Path, step: str, groups: str) -> None:
    path = tmp_path / "start.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "3", "--failure-patience", "20"]
    done = subprocess.run(
        [*command, sys.executable, str(path), step],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HOROVOD_TRANSPORT_GROUPS": groups},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = [json.loads(line.partition("told ")[2]) for line in done.stdout.splitlines() if "told " in line]
    assert sorted(each[0] for each in told) == [0, 1, 2], done.stdout + done.stderr
    for rank, culprit, host, text in told:
        assert "Cannot allocate memory" in text or "Resource temporarily unavailable" in text, text
        if rank != 1:
            assert (culprit, host) == (1, "localhost")
            assert re.match(r"Rank 1 on host localhost: |rank 1 on host localhost has ended: ", text), text
    assert "horovodrun: rank 1 on localhost exited with status 1" in done.stderr, done.stderr
