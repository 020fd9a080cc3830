"""A training job whose data are prepared by another job: two ranks each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, PYTHON, environment

SCRIPT = str(Path(__file__).with_name("compute_service_job.py"))
LIMIT_S = 150.0  # TensorFlow starts four times, and the machine may have other work
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.timeout(400)
def test_a_compute_job_prepares_the_data_of_a_training_job(tmp_path: Path) -> None:
    # Nothing of it leaves this machine.
    environ = environment({**QUIET, "HOROVOD_GLOO_IFACE": "lo"})
    jobs = {
        side: subprocess.Popen(
            [*COMMAND, "-np", "2", PYTHON, SCRIPT, side, str(tmp_path)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for side in ("compute", "training")
    }
    said = {}
    try:
        said["training"] = jobs["training"].communicate(timeout=LIMIT_S)[0]
        assert jobs["training"].returncode == 0, said["training"][-8000:]
        said["compute"] = jobs["compute"].communicate(timeout=LIMIT_S)[0]
        assert jobs["compute"].returncode == 0, said["compute"][-8000:]
    finally:
        for job in jobs.values():
            job.terminate()  # the launcher ends its ranks
            job.wait(30)
    assert [text.count("ended well") for text in said.values()] == [2, 2]
    assert os.listdir(tmp_path) == []
