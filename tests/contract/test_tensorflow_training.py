"""Optimizers, tapes and layers of `horovod.tensorflow`: the cases of the tables in a few worlds.

A world runs once, when its first case is asked for; see `world.py`. Every case is run by two ranks; other
worlds, which take as long to import TensorFlow, have those in which they differ.
"""

from __future__ import annotations

import os

import pytest
from tests.contract.tensorflow import training, training_few
from tests.contract.world import World, run_cases

TABLES = [
    (World(2), training),
    (World(1), training_few),
    (World(3), training_few),
    *([(World(4), training_few)] if os.environ.get("RUEDA_FULL_MATRIX") else []),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("world", "module", "case"),
    [(world, table.__name__, case) for world, table in TABLES for case in table.CASES],
    ids=[f"{world}-{case}" for world, table in TABLES for case in table.CASES],
)
def test_training(world: World, module: str, case: str) -> None:
    run_cases(module, world).check(case, world)
