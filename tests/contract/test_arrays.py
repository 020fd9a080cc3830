"""The contract of `horovod.arrays` on arrays of NumPy and of the fake device: alone, with two ranks that
share memory, which also copy from peer to peer, and on two hosts of two ranks.

A world runs once, when its first case is asked for; see `world.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import fakes
from tests.contract.arrays import collectives, order
from tests.contract.world import World, run_cases

DEVICES = (("LD_LIBRARY_PATH", fakes.environment()["LD_LIBRARY_PATH"]), ("FAKE_CUDA_DEVICES", "2"))
PEER = (("HOROVOD_GPU_OPERATIONS", "PEER"),)
WORLDS = {
    f"{world}{'-peer' if PEER[0] in world.variables else ''}": replace(
        world, variables=world.variables + DEVICES
    )
    for world in (World(1), World(2), World(2, variables=PEER), World.on_hosts("abab"))
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("world", "module", "case"),
    [
        (world, table.__name__, case)
        for world in WORLDS.values()
        for table in (collectives, order)
        for case in table.CASES
    ],
    ids=[
        f"{world}-{table.__name__.rpartition('.')[2]}-{case}"
        for world in WORLDS
        for table in (collectives, order)
        for case in table.CASES
    ],
)
def test_arrays(world: World, module: str, case: str) -> None:
    run_cases(module, world).check(case, world)
