"""The contract of `horovod.torch`: every case of the table in every world.

A world runs once, when its first case is asked for; see `world.py`.
"""

from __future__ import annotations

import pytest
from tests.contract.torch.cases import CASES
from tests.contract.world import WORLDS, World, run_cases


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_torch(case: str, world: World) -> None:
    run_cases("tests.contract.torch.cases", world).check(case, world)
