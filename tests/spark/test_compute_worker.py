"""A compute job in Spark tasks serves a training, and ends with status 0 when that says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.conftest import WHOLE, submit_arguments

pytest.importorskip("pyspark", reason="PySpark is not installed")

TRAINING = """
import sys
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig

config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True, timeout_s=120)
numbers = tf.data.Dataset.range(100).map(lambda x: x * x).batch(10)
found = sorted(int(each) for batch in numbers.send_to_data_service(config, 0, 1) for each in batch)
assert found == [each * each for each in range(100)], found
config.compute_client().shutdown()
"""
LIMIT_S = 200.0


@pytest.mark.timeout(450)
@pytest.mark.skipif(not WHOLE, reason="TensorFlow starts four times: the full matrix tries it")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, which is not installed")
def test_a_compute_job_in_spark_tasks(tmp_path: Path) -> None:
    file = str(tmp_path / "compute.json")
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": submit_arguments("local[2]"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HOROVOD_GLOO_IFACE": "lo",
        "OMP_NUM_THREADS": "1",
    }
    lines = {
        "compute": ["-m", "horovod.spark.tensorflow.compute_worker", file, "--timeout", "120"],
        "training": ["-c", TRAINING, file],
    }
    jobs = {
        name: subprocess.Popen(
            [sys.executable, *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, words in lines.items()
    }
    try:
        for name in ("training", "compute"):
            said = jobs[name].communicate(timeout=LIMIT_S)[0]
            assert jobs[name].returncode == 0, said[-8000:]
    finally:
        for job in jobs.values():
            job.terminate()
            job.wait(60)
    assert os.listdir(tmp_path) == []
