"""The contract of `horovod.tensorflow`: every case of the table in every way to run an op.

Worlds are fewer than PyTorch's: what moves the bytes is the same. See `world.py`.
"""

from __future__ import annotations

import pytest
from tests.contract.tensorflow.cases import CASES
from tests.contract.world import World, run_cases

WORLDS = [World(1), World(2), World(3, "single")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_tensorflow(case: str, world: World) -> None:
    run_cases("tests.contract.tensorflow.cases", world).check(case, world)
