"""What a rank takes. Frameworks are played; libraries of a vendor, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from horovod.common.basics import HorovodBasics
from horovod.devices import pin
from horovod.devices.inventory import Device, Inventory
from horovod.devices.pin import HostPlace
from horovod.errors import NotInitializedError

LIMIT_S = 60.0
ALL = sorted(os.sched_getaffinity(0))
NONE = "no driver (libcuda.so.1) was found"


def device(index: int, node: int | None = None, cores: tuple[int, ...] = ()) -> Device:
    return Device(
        index, f"Device {index}", 1 << 30, f"GPU-{index}", "", "9.0", node, cores, True, (), (), None
    )


def inventory(*devices: Device) -> Inventory:
    return Inventory(devices, "" if devices else NONE, "", "", None, "", "", {"mlx5_0": 0, "mlx5_1": 1})


@pytest.fixture(autouse=True)
def own_world(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Nothing of the process changes; returns the cores that it was bound to."""
    bound: list[tuple[int, ...]] = []

    def bind(cores: Any, before: Any) -> str:
        bound.append(tuple(sorted(cores)))
        return ""

    monkeypatch.setattr(pin, "_before", None)
    monkeypatch.setattr(pin, "bind_threads", bind)
    monkeypatch.setattr(pin, "_started", lambda: False)
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")  # put back at the end, whatever pin() makes of it
    return bound


def has(monkeypatch: pytest.MonkeyPatch, *devices: Device) -> None:
    monkeypatch.setattr(pin, "take_inventory", lambda **_: inventory(*devices))


class Torch:
    """Its CUDA."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.chosen: int | None = None
        self.cuda = self

    def is_available(self) -> bool:
        return self.devices > 0

    def device_count(self) -> int:
        return self.devices

    def set_device(self, index: int) -> None:
        self.chosen = index


class TensorFlow:
    """Its configuration."""

    def __init__(self, devices: int, in_use: bool = False) -> None:
        self.devices = [f"GPU:{index}" for index in range(devices)]
        self.in_use = in_use
        self.chosen: str | None = None
        self.config = self

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.devices

    def set_visible_devices(self, chosen: str, kind: str) -> None:
        if self.in_use:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.chosen = chosen


def test_torch_is_told_and_the_mask_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, device(0), device(1))
    torch = Torch(2)
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = pin.pin(HostPlace(1, 2, 1.0))
    assert (torch.chosen, found.device, found.uuid, found.name) == (1, 1, "GPU-1", "Device 1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "local rank 1 of 2: device 1 of 2, by torch.cuda.set_device(1)" in found.why


def test_tensorflow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, device(0), device(1))
    tensorflow = TensorFlow(2)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, "torch", Torch(0))
    assert pin.pin(HostPlace(1, 2, 1.0)).device == 1
    assert tensorflow.chosen == "GPU:1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_without_a_framework_the_mask_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, device(0), device(1))
    found = pin.pin(HostPlace(1, 2, 1.0))
    assert (found.device, found.uuid) == (0, "GPU-1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    # In another world of this process another place may count.
    assert pin.pin(HostPlace(0, 2, 1.0)).uuid == "GPU-0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"


def test_a_mask_that_nobody_had_set_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    has(monkeypatch, device(0), device(1))
    pin.pin(HostPlace(1, 2, 1.0))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    has(monkeypatch)
    pin.pin(HostPlace(1, 2, 1.0))
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_more_ranks_than_devices_share(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, device(0), device(1))
    assert [pin.pin(HostPlace(rank, 5, 1.0)).uuid for rank in range(5)] == [
        "GPU-0", "GPU-1", "GPU-0", "GPU-1", "GPU-0",
    ]  # fmt: skip


def test_each_rank_takes_a_part_of_a_device_that_its_mask_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    has(monkeypatch, device(0))  # a process sees the first one only
    assert pin.pin(HostPlace(1, 2, 1.0)).device == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-b"


def test_where_cuda_has_started_nothing_changes_and_the_script_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, device(0), device(1))
    monkeypatch.setattr(pin, "_started", lambda: True)
    monkeypatch.setitem(sys.modules, "tensorflow", TensorFlow(2, in_use=True))
    found = pin.pin(HostPlace(1, 2, 1.0))
    assert found.device is None
    assert "device 1 of 2 is yours, but CUDA was started before pin() was called" in found.why
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_without_devices_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, own_world: list[tuple[int, ...]]
) -> None:
    has(monkeypatch)
    found = pin.pin(HostPlace(1, 2, len(ALL) / 2))
    assert (found.device, found.name, found.cores, own_world) == (None, "", (), [])
    assert found.why.startswith(f"no device: {NONE}; cores are left as they are")


def test_cores_near_the_device_are_divided(
    monkeypatch: pytest.MonkeyPatch, own_world: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000, 1016)))
    low, high = tuple(range(1000, 1008)), tuple(range(1008, 1016))
    has(monkeypatch, device(0, 0, low), device(1, 1, high))
    found = pin.pin(HostPlace(3, 4, 4.0))
    assert (found.numa_node, found.cores, found.adapters) == (1, (1012, 1013, 1014, 1015), ("mlx5_1",))
    assert own_world == [found.cores]
    assert "bound to cores 1012-1015" in found.why
    assert pin.pin(HostPlace(3, 4, 4.0), cores=False).cores == ()


def test_cores_of_this_rank_alone_are_kept(
    monkeypatch: pytest.MonkeyPatch, own_world: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000, 1004)))
    has(monkeypatch, device(0, 0, (1000, 1001)), device(1, 0, (1000, 1001)))
    found = pin.pin(HostPlace(1, 4, 4.0), cores=True)
    assert (found.cores, own_world) == ((), [])
    assert "cores 1000-1003 are this rank's alone already" in found.why


def test_who_sees_one_device_only_takes_all_cores_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000, 1016)))
    has(monkeypatch, device(0, 1, tuple(range(1008, 1016))))
    assert pin.pin(HostPlace(3, 4, 4.0)).cores == tuple(range(1008, 1016))


def test_a_world_is_needed() -> None:
    with pytest.raises(NotInitializedError):
        HorovodBasics().pin()


_RANK = """
import ctypes, dataclasses, json, os, sys, threading
sys.modules["torch"] = sys.modules["tensorflow"] = None
from horovod.common.basics import HorovodBasics
basics = HorovodBasics()
basics.init()
{before}
from horovod.devices import pin
everybody = os.sched_getaffinity(0)
place = pin.HostPlace(1, 2, len(everybody) / 2)
go = threading.Event()
seen = []
thread = threading.Thread(target=lambda: (go.wait(30), seen.append(sorted(os.sched_getaffinity(0)))))
thread.start()
found = pin.pin(place, cores=True)
go.set()
thread.join()
mask = os.environ.get("CUDA_VISIBLE_DEVICES")
print(json.dumps([dataclasses.asdict(found), mask, sorted(os.sched_getaffinity(0)), seen[0]]))
"""


def rank(fakes: Mapping[str, str], before: str = "") -> Any:
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", _RANK.format(before=before)],
        env={**clean, **fakes, "FAKE_CUDA_DEVICES": "2"},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_process_is_pinned_with_all_its_threads(fakes: Mapping[str, str]) -> None:
    found, mask, cores, of_thread = rank(fakes)
    assert (found["device"], found["name"], mask) == (0, "Fake device 1", "1")
    assert cores == of_thread
    if len(ALL) > 1:
        assert found["cores"] == cores
        assert set(cores) < set(ALL)


def test_a_driver_that_has_started_is_noticed(fakes: Mapping[str, str]) -> None:
    found, mask, _, _ = rank(fakes, "ctypes.CDLL('libcuda.so.1')")
    assert (found["device"], mask) == (0, "1")  # loaded is not started
    found, mask, _, _ = rank(fakes, "ctypes.CDLL('libcuda.so.1').cuInit(0)")
    assert (found["device"], mask) == (None, None)
