"""Jobs in which something goes wrong with a device; `tests/contract/arrays/trouble.py` is a rank of them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests import fakes
from tests.contract import job
from tests.contract.world import ROOT, World, environment

from horovod.bootstrap.store.server import StoreServer

MODULE = "tests.contract.arrays.trouble"
LIMIT_S = 60.0


def on_devices(world: World, **variables: object) -> World:
    """``world`` with the fake driver, and variables of it."""
    given = fakes.environment(**variables)
    names = ("LD_LIBRARY_PATH", *variables)
    return replace(world, variables=world.variables + tuple((name, given[name]) for name in names))


@pytest.mark.parametrize("world", [World(2), World.on_hosts("abab")], ids=str)
@pytest.mark.parametrize("what", ["forked", "new_worlds", "ends", "captured", "no_such_device", "broken"])
def test_a_job(what: str, world: World) -> None:
    said = job.run(on_devices(world), MODULE, [what], LIMIT_S)
    assert said.count("fine") == world.size, said
    assert "Traceback" not in said, said


@pytest.mark.parametrize(
    ("what", "world"),
    [
        ("no_driver", replace(World(2), variables=(("LD_LIBRARY_PATH", ""),))),
        ("no_device", on_devices(World(2), FAKE_CUDA_DEVICES=0)),
        ("no_pinned_memory", on_devices(World(2), FAKE_CUDA_FAIL="cuMemHostAlloc:1+:2")),
    ],
    ids=["no_driver", "no_device", "no_pinned_memory"],
)
def test_a_job_without(what: str, world: World) -> None:
    said = job.run(world, MODULE, [what], LIMIT_S)
    assert said.count("fine") == world.size, said


@pytest.mark.parametrize("world", [World(3), World.on_hosts("abab")], ids=str)
def test_others_name_a_rank_that_is_killed_amid_a_collective(world: World, tmp_path: Path) -> None:
    key, name = secrets.token_bytes(32), secrets.token_hex(8)
    world = on_devices(world, KILL_NOW=tmp_path / "now")
    logs = [tmp_path / f"{rank}.log" for rank in range(world.size)]
    with StoreServer(key, job=name) as store:
        ranks = []
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", MODULE, "killed"],
                        cwd=ROOT,
                        env={**os.environ, **environment(rank, world, key, name, store.address)},
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            codes = [process.wait(LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    said = "\n".join(log.read_text() for log in logs)
    assert codes == [0] * (world.size - 1) + [-signal.SIGKILL], said
    assert said.count("fine") == world.size - 1, said
