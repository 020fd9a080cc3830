"""Public reports of this field as cases: `reported/cases.py` for PyTorch; ``FARANDOLE_FULL_MATRIX=1`` adds
those that compile, and TensorFlow's, each a job of its own."""

from __future__ import annotations

import importlib
import os

import pytest
from tests.contract.world import World, run_cases

NAMES = ["cases", *(["compiled", "tensorflow_graphs"] if os.environ.get("FARANDOLE_FULL_MATRIX") else [])]
TABLES = [importlib.import_module(f"tests.contract.reported.{name}") for name in NAMES]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("module", "case"),
    [(table.__name__, case) for table in TABLES for case in table.CASES],
    ids=[case for table in TABLES for case in table.CASES],
)
def test_reported(module: str, case: str) -> None:
    run_cases(module, World(2)).check(case, World(2))
