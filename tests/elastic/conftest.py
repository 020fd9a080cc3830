"""Fixtures of elastic jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.elastic.training import Train, trainer


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Starts a job that trains with NumPy."""
    return trainer(tmp_path / "job")
