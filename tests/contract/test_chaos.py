"""Two threads on every rank, and connections between hosts each of which is late, narrow, cut and stalled by
itself: every value is right.

This is about what ``tests/core/engine/test_chaos.cpp`` cannot have: a framework, processes, protection of the
network. It is no search for mistakes in the order of operations: without what keeps offers and dispatches in
one order, 1 of 12 such jobs fails, but every world of that test.

More of it: ``CHAOS_STEPS=5000 CHAOS_SEED=7 python -m pytest tests/contract/test_chaos.py``.
"""

from __future__ import annotations

import os

import pytest
from tests.contract.job import run
from tests.contract.world import World

SEED = int(os.environ.get("CHAOS_SEED", "1"))
STEPS = int(os.environ.get("CHAOS_STEPS", "160"))
LIMIT_S = 90.0


@pytest.mark.timeout(LIMIT_S + 30.0)
@pytest.mark.parametrize("hosts", ["ab", "aabb"])
def test_every_value_is_right_whatever_connections_do(hosts: str) -> None:
    arguments = [f"--seed={SEED}", f"--steps={STEPS}"]
    text = run(World.on_hosts(hosts), "tests.contract.chaos_rank", arguments, LIMIT_S)
    assert text.count(f"right: {STEPS} {STEPS}") == len(hosts), text
