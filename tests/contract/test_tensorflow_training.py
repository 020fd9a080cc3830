"""Optimizers, tapes and layers of `horovod.tensorflow`: every case of the tables in a few worlds.

A world runs once, when its first case is asked for; see `world.py`. What the core does differently with more
ranks has tables of its own.
"""

from __future__ import annotations

import pytest
from tests.contract.tensorflow.training import CASES
from tests.contract.world import World, run_cases

WORLDS = [World(1), World(2), World(3), World(4)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_training(case: str, world: World) -> None:
    run_cases("tests.contract.tensorflow.training", world).check(case, world)
