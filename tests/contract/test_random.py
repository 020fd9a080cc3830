"""Random operations and disagreements on random process sets: a result or the documented error, always.

More of it: ``RANDOM_STEPS=5000 RANDOM_SEED=7 python -m pytest tests/contract/test_random.py``.
"""

from __future__ import annotations

import os

import pytest
from tests.contract.job import run
from tests.contract.world import World

SEED = int(os.environ.get("RANDOM_SEED", "20261121"))
STEPS = int(os.environ.get("RANDOM_STEPS", "0"))
LIMIT_S = float(os.environ.get("RANDOM_LIMIT_S", "240"))


def run_random(world: World, seed: int, steps: int, sets: int) -> None:
    arguments = [f"--seed={seed}", f"--steps={steps}", f"--sets={sets}"]
    run(world, "tests.contract.random_rank", arguments, LIMIT_S)


@pytest.mark.timeout(LIMIT_S + 30.0)
@pytest.mark.parametrize("groups", ["auto", "single"], ids=["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_gets_a_result_or_the_documented_error(size: int, groups: str) -> None:
    run_random(World(size, groups), SEED + size, STEPS or 120, sets=2)


@pytest.mark.timeout(LIMIT_S + 30.0)
@pytest.mark.parametrize("groups", ["auto", "single"], ids=["shm", "tcp"])
def test_eight_ranks_on_overlapping_sets_do_not_deadlock(groups: str) -> None:
    """Over TCP, most of them connect while operations wait for it."""
    world = World(8, groups, variables=(("HOROVOD_NETWORK_CONNECT_ALL", "1"),))
    run_random(world, SEED, STEPS or 60, sets=12)
