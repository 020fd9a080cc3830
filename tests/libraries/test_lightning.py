"""PyTorch Lightning 1.9 trains on two ranks by its own strategy ``horovod``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.libraries.environments import environment, horovodrun, nightly

JOB = Path(__file__).with_name("lightning_job.py")
pytestmark = [nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_lightning_trains_with_its_strategy(accumulated: int, tmp_path: Path) -> None:
    programs = environment("lightning")
    said = horovodrun(programs, "python", str(JOB), str(tmp_path), str(accumulated), cwd=tmp_path)
    told = sorted(re.findall(r"rank (\d): error (\S+), rate (\S+)", said))
    assert [rank for rank, _, _ in told] == ["0", "1"], said
    assert all(float(error) < 1e-3 for _, error, _ in told), told
    # 0.05 for each rank, a tenth of it after 10 epochs, a tenth of that after 20.
    assert {rate for _, _, rate in told} == {"0.001000"}
