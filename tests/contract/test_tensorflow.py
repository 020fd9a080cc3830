"""The contract of `horovod.tensorflow`: collectives in every way to run an op; optimizers, tapes and layers.

A world runs once, when its first case is asked for; see `world.py`. Worlds are fewer than PyTorch's, as what
moves the bytes is the same, and two ranks run every case; other worlds those in which they may differ.
"""

from __future__ import annotations

import os

import pytest
from tests.contract.tensorflow import cases, few_cases
from tests.contract.world import World, run_cases

TABLES = [
    (World(2), cases),
    (World(1), few_cases),
    (World(3, "single"), few_cases),
    *([(World(4), few_cases)] if os.environ.get("FARANDOLE_FULL_MATRIX") else []),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("world", "module", "case"),
    [(world, table.__name__, case) for world, table in TABLES for case in table.CASES],
    ids=[f"{world}-{case}" for world, table in TABLES for case in table.CASES],
)
def test_tensorflow(world: World, module: str, case: str) -> None:
    run_cases(module, world).check(case, world)
