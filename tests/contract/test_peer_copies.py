"""Ranks of one host that copy from each other's device memory, as processes. Handles of memory work between
processes only, so the tests of the core have none. `tests/contract/arrays/peer.py` is a rank."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import job
from tests.contract.test_arrays_in_trouble import on_devices
from tests.contract.world import ROOT, World, environment

from horovod.bootstrap.store.server import StoreServer

MODULE = "tests.contract.arrays.peer"
LIMIT_S = 60.0


def world(size: int, **variables: object) -> World:
    return on_devices(World(size), HOROVOD_GPU_OPERATIONS="PEER", **variables)


@pytest.mark.parametrize("what", ["moves", "sets", "new_worlds"])
def test_a_job(what: str) -> None:
    said = job.run(world(3), MODULE, [what], LIMIT_S)
    assert said.count("fine") == 3, said
    assert "Traceback" not in said, said


@pytest.mark.parametrize(
    ("why", "variables"),
    [
        ("rank 1: it cannot read the memory of rank 0: cannot open a buffer on device 0: CUDA_ERROR_MAP_FAIL",
         {"FAKE_CUDA_FAIL_OF_1": "cuIpcOpenMemHandle:1:205"}),
        ("rank 1: it cannot read the memory of rank 2: cannot open a buffer on device 0: CUDA_ERROR_UNKNOWN",
         {"FAKE_CUDA_FAIL_OF_1": "cuIpcOpenMemHandle:2:999"}),
        ("rank 2: no handle for other processes on device 0: CUDA_ERROR_NOT_SUPPORTED",
         {"FAKE_CUDA_FAIL_OF_2": "cuIpcGetMemHandle:1:801"}),
        ("rank 0: it does not see the device of rank 2, which CUDA_VISIBLE_DEVICES or the container hides",
         {"FAKE_CUDA_DEVICES": 2, "CUDA_VISIBLE_DEVICES_OF_0": "0", "CUDA_VISIBLE_DEVICES_OF_2": "1"}),
        ("rank 1 has a driver for CUDA 12.2, but rank 0 has one for 12.4",
         {"FAKE_CUDA_VERSION_OF_1": 12020}),
    ],
    ids=["open", "open_another", "no_handle", "hidden", "another_driver"],
)  # fmt: skip
def test_all_ranks_hear_who_cannot(why: str, variables: dict[str, object]) -> None:
    said = job.run(world(3, EXPECTED=why.replace(".", r"\."), **variables), MODULE, ["refused"], LIMIT_S)
    assert said.count("fine") == 3, said


def test_others_name_a_rank_that_is_killed_amid_chunks(tmp_path: Path) -> None:
    key, name = secrets.token_bytes(32), secrets.token_hex(8)
    logs = [tmp_path / f"{rank}.log" for rank in range(3)]
    with StoreServer(key, job=name) as store:
        ranks = []
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", MODULE, "killed"],
                        cwd=ROOT,
                        env=environment(rank, world(3), key, name, store.address),
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
    assert codes == [0, 0, -signal.SIGKILL], said
    assert said.count("fine") == 2, said
