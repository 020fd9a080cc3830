"""`horovod.torch` with tensors of devices, on a driver and an NCCL that stand in for NVIDIA's: by NCCL with a
device for each rank, through the host and from peer to peer with one device for both, and alone.
`FARANDOLE_TEST_DEVICE=cuda` runs the same tables on real devices: `tests.contract.world`."""

from __future__ import annotations

import os

import pytest
from tests import fakes
from tests.contract.torch import device_cases, nccl_cases, peer_cases, streams
from tests.contract.world import World, run_cases


def _world(size: int, **settings: object) -> World:
    given = {
        "FARANDOLE_TEST_DEVICE": "fake",
        "LD_LIBRARY_PATH": fakes.environment()["LD_LIBRARY_PATH"],
        **settings,
    }
    return World(size, variables=tuple((name, str(value)) for name, value in given.items()))


WORLDS = {
    "1": _world(1, FAKE_CUDA_DEVICES=1),
    "2-nccl": _world(2, FAKE_CUDA_DEVICES=2),
    "2-staged": _world(2, FAKE_CUDA_DEVICES=2, HOROVOD_GPU_OPERATIONS="STAGED"),
    "2-peer": _world(2, FAKE_CUDA_DEVICES=1, HOROVOD_GPU_OPERATIONS="PEER"),
}


# The ways differ below the frontend, and those are tested in tests/core.
TABLES = {"1": streams, "2-nccl": streams, "2-staged": device_cases, "2-peer": peer_cases}
if os.environ.get("FARANDOLE_FULL_MATRIX"):
    TABLES.update({"1": device_cases, "2-nccl": nccl_cases, "2-peer": device_cases})


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("world", "case"),
    [(world, case) for world, table in TABLES.items() for case in table.CASES],
    ids=[f"{world}-{case}" for world, table in TABLES.items() for case in table.CASES],
)
def test_torch_devices(world: str, case: str) -> None:
    run_cases(TABLES[world].__name__, WORLDS[world]).check(case, WORLDS[world])
