"""The contract of `horovod.torch`: every case of the table alone and with two ranks that share memory; on two
hosts of two ranks in fewer ways to call; in other worlds those that may differ there.
``FARANDOLE_FULL_MATRIX=1`` runs every case in every world.

A world runs once, when its first case is asked for; see `world.py`.
"""

from __future__ import annotations

import os

import pytest
from tests.contract.torch import cases, few_cases, host_cases
from tests.contract.world import WORLDS, World, run_cases

WHOLE = {"1": cases, "2": cases, "abab": host_cases}
TABLES = [
    (world, cases if os.environ.get("FARANDOLE_FULL_MATRIX") else WHOLE.get(str(world), few_cases))
    for world in WORLDS
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("world", "module", "case"),
    [(world, table.__name__, case) for world, table in TABLES for case in table.CASES],
    ids=[f"{world}-{case}" for world, table in TABLES for case in table.CASES],
)
def test_torch(world: World, module: str, case: str) -> None:
    run_cases(module, world).check(case, world)
