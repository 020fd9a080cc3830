"""Tensors of more than 2 GiB, where counts no longer fit into 32 bits."""

from __future__ import annotations

import secrets
import subprocess
import sys

import psutil
import pytest
from tests.contract.world import ROOT, World, environment

from horovod.bootstrap.store.server import StoreServer

NEEDED_BYTES = 12 << 30


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    psutil.virtual_memory().available < NEEDED_BYTES, reason="less than 12 GiB of memory are available"
)
@pytest.mark.parametrize("groups", ["auto", "single"], ids=["shm", "tcp"])
def test_tensors_of_more_than_2_gib_arrive_whole(groups: str) -> None:
    world = World(2, groups)
    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    with StoreServer(key, job=job) as store:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.contract.huge"],
                cwd=ROOT,
                env=environment(rank, world, key, job, store.address),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world.size)
        ]
        try:
            outputs = [process.communicate(timeout=240)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
    assert outputs == ["done\n"] * world.size, "\n".join(outputs)
