"""Scripts of TensorFlow 1, on two ranks: training, checkpoints, and models that serve without Horovod."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.launch.launching import COMMAND, PYTHON, environment

HERE = Path(__file__).parent
LIMIT_S = 150.0  # starting TensorFlow three times, and the machine may have other work
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def finished(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(QUIET),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.timeout(400)
def test_scripts_of_tensorflow_1_train_restore_and_export(tmp_path: Path) -> None:
    modes = ["disable_eager_execution", "disable_v2_behavior"]  # the second leaves behind more than the first
    script = str(HERE / "tensorflow1_job.py")
    job = finished(*COMMAND, "-np", "2", PYTHON, script, str(tmp_path), *modes)
    assert job.returncode == 0, job.stdout[-8000:]
    assert [job.stdout.count(f"did all after {mode}") for mode in modes] == [2, 2]

    rows = tmp_path / "rows.npy"
    np.save(rows, np.array([[1.0, 2.0, -1.0], [0.5, -1.5, 2.0]]))
    models = [tmp_path / mode / name for mode in modes for name in ("stripped", "restored")]
    served = finished(PYTHON, str(HERE / "serve_without_horovod.py"), str(rows), *map(str, models))
    assert served.returncode == 0, served.stdout[-8000:]
    answers = [json.loads(line) for line in served.stdout.splitlines() if line.startswith("[[")]
    for model, by_loader in zip(models, answers, strict=True):
        for scores in by_loader:
            np.testing.assert_allclose(scores, np.load(model.parent / "scores.npy"), rtol=1e-5)
