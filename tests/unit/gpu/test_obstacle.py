from __future__ import annotations

import dataclasses
from typing import Any

from tests.gpu.__main__ import obstacle

from horovod.devices.inventory import Device, Inventory

NOTHING = Inventory((), "no driver (libcuda.so.1) was found", "", "", None, "no NCCL was found", "", {})
FACTS: dict[str, Any] = {field.name: None for field in dataclasses.fields(Device)}


def test_no_device() -> None:
    said = obstacle(NOTHING, None)
    assert said.startswith("No device: no driver (libcuda.so.1) was found. ")
    assert "FARANDOLE_TEST_DEVICE=fake" in said


def test_a_device_that_pytorch_cannot_use() -> None:
    there = dataclasses.replace(NOTHING, devices=(Device(**FACTS),), problem="")
    assert "PyTorch in this environment is not built for CUDA" in obstacle(there, None)
    assert obstacle(there, "12.8") == ""
