"""Ctrl-C at every place of an operation: see ``interrupted``."""

from __future__ import annotations

import pytest
from tests.contract.interrupted import CASES
from tests.contract.world import World, run_cases


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", list(CASES))
def test_interrupted(case: str) -> None:
    world = World(2)
    run_cases("tests.contract.interrupted", world).check(case, world)
