"""Libraries that train through `horovod.torch` work as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).with_name("ignite_job.py")
LIMIT_S = 100.0


def test_ignite_trains_on_two_processes() -> None:
    done = subprocess.run(
        [sys.executable, str(JOB)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    errors = dict(re.findall(r"rank (\d): error (\S+)", done.stdout))
    assert sorted(errors) == ["0", "1"]
    assert errors["0"] == errors["1"]  # metrics are reduced over the ranks
    assert float(errors["0"]) < 1e-3
