"""Random operations and disagreements on random process sets: a result or the documented error, always.

More of it: ``RANDOM_STEPS=5000 RANDOM_SEED=7 python -m pytest tests/contract/test_random.py``.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time

import pytest
from tests.contract.world import ROOT, World, environment

from horovod.bootstrap.store import StoreServer

SEED = int(os.environ.get("RANDOM_SEED", "20261121"))
STEPS = int(os.environ.get("RANDOM_STEPS", "0"))
LIMIT_S = float(os.environ.get("RANDOM_LIMIT_S", "240"))


def run(world: World, seed: int, steps: int, sets: int) -> None:
    key = secrets.token_bytes(32)
    job = secrets.token_hex(8)
    command = [sys.executable, "-m", "tests.contract.random_rank"]
    command += [f"--seed={seed}", f"--steps={steps}", f"--sets={sets}"]
    with StoreServer(key) as store, tempfile.TemporaryFile("w+") as said:
        ranks = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(rank, world, key, job, store.address),
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            for rank in range(world.size)
        ]
        deadline = time.monotonic() + LIMIT_S
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in ranks]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        said.seek(0)
        assert not any(codes), f"seed {seed}, exit codes {codes}\n{said.read()[-12000:]}"


@pytest.mark.timeout(LIMIT_S + 30.0)
@pytest.mark.parametrize("groups", ["auto", "single"], ids=["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_gets_a_result_or_the_documented_error(size: int, groups: str) -> None:
    run(World(size, groups), SEED + size, STEPS or 120, sets=2)


@pytest.mark.timeout(LIMIT_S + 30.0)
@pytest.mark.parametrize("groups", ["auto", "single"], ids=["shm", "tcp"])
def test_eight_ranks_on_overlapping_sets_do_not_deadlock(groups: str) -> None:
    run(World(8, groups), SEED, STEPS or 60, sets=12)
