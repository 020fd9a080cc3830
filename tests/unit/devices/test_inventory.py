"""What is found with, without and with broken libraries of a vendor."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from horovod.devices import inventory, ways
from horovod.devices.inventory import Inventory, take_inventory
from horovod.devices.nccl import Nccl, version_text
from horovod.devices.text import facts, section
from horovod.devices.ways import choose

NOWHERE = Path("/nonexistent")


def take(fakes: Mapping[str, str], **variables: str) -> Inventory:
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return take_inventory({**clean, **fakes, **variables}, sys_folder=NOWHERE, proc=NOWHERE, limit_s=60)


def test_devices_have_all_their_facts(fakes: Mapping[str, str], vendor: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bus" / "pci" / "devices" / "0000:11:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    (folder / "local_cpulist").write_text("8-15\n")
    (tmp_path / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"
    (tmp_path / "driver" / "nvidia" / "version").write_text(version)
    (tmp_path / "modules").write_text("nvidia_peermem 16384 0 - Live 0x0\nib_core 1 0 - Live 0x0\n")
    environ = {**os.environ, **fakes, "FAKE_CUDA_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0,1"}
    found = take_inventory(environ, sys_folder=tmp_path, proc=tmp_path)
    first, second = found.devices
    assert second == inventory.Device(
        index=1,
        name="Fake device 1",
        memory_bytes=4 << 30,
        uuid="GPU-66616b65-2064-6576-6963-650000000011",
        pci="0000:11:00.0",
        compute_capability="9.0",
        numa_node=1,
        cores=tuple(range(8, 16)),
        rdma=False,
        peers=(0,),
        linked=(),
        links=18,
    )
    assert (first.numa_node, first.cores, first.peers) == (None, (), (1,))
    assert (found.problem, found.driver, found.cuda) == ("", "570.124.06", "12.4")
    assert found.nccl == Nccl(22703, str(vendor / "libnccl.so.2"))
    assert (found.peer_module, found.adapters) == ("nvidia_peermem", {"mlx5_0": None})
    assert section(found, {}).splitlines() == [
        "Devices:",
        "    0  Fake device 0, 4.0 GiB, compute capability 9.0, PCI 0000:10:00.0, "
        "GPU-66616b65-2064-6576-6963-650000000010",
        "    1  Fake device 1, 4.0 GiB, compute capability 9.0, PCI 0000:11:00.0, NUMA node 1, cores 8-15, "
        "GPU-66616b65-2064-6576-6963-650000000011",
        "    driver: 570.124.06, serves CUDA 12.4",
        f"    NCCL: 2.27.3 from {vendor}/libnccl.so.2",
        "    peer access: all devices reach each other's memory",
        "    NVLink: no two devices have it; links that are up, by device: 18, 18",
        "    copies between peers: HOROVOD_GPU_OPERATIONS=PEER can serve ranks on any devices; never chosen "
        "unasked, as nobody has measured it between devices",
        "    GPUDirect RDMA: no device supports it",
        f"    tensors in device memory: {choose(found, {}).text}",
    ]
    assert facts(found, {})["devices"][1]["uuid"].endswith("11")


def test_devices_may_not_reach_each_other(fakes: Mapping[str, str]) -> None:
    text = section(take(fakes, FAKE_CUDA_DEVICES="2", FAKE_CUDA_PEERS="0", FAKE_NVML_LINKS="0"), {})
    assert "    peer access: no device reaches another's memory\n" in text
    assert "    NVLink: no two devices have it; links that are up, by device: 0, 0\n" in text
    assert (
        "    copies between peers: HOROVOD_GPU_OPERATIONS=PEER can serve ranks that share a device; " in text
    )
    assert "    driver: serves CUDA 12.4\n" in text


def test_nvlink_and_gpudirect(odd: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    environ = {**os.environ, **odd, "FAKE_CUDA_LINKED": "1", "FAKE_CUDA_RDMA": "1"}
    text = section(take_inventory(environ, sys_folder=tmp_path, proc=tmp_path), {})
    assert "    NVLink: all devices reach each other by it; links that are up, by device: 18, 18\n" in text
    assert (
        "    GPUDirect RDMA: devices 0-1 support it; the kernel has no nvidia_peermem, so that only "
        "DMA-BUF is left; InfiniBand adapters: mlx5_0\n"
    ) in text
    (tmp_path / "modules").write_text("nvidia_peermem 16384 0 - Live 0x0\n")
    text = section(take_inventory(environ, sys_folder=NOWHERE, proc=tmp_path), {})
    assert "the kernel has nvidia_peermem; there is no InfiniBand adapter\n" in text


def test_a_part_of_a_device_has_its_own_name(odd: Mapping[str, str]) -> None:
    assert take(odd, FAKE_CUDA_PART="1").devices[1].uuid == "MIG-cdababab-abab-abab-abab-ababababab01"
    assert take(odd).devices[1].uuid == "GPU-abababab-abab-abab-abab-ababababab01"


def test_without_libraries_there_is_nothing() -> None:
    found = take({"LD_LIBRARY_PATH": "/nonexistent"})
    if not found.problem:
        pytest.skip("this machine has a driver, which cannot be hidden")
    assert found.devices == ()
    if "no driver" in found.problem:
        assert found.problem == "no driver (libcuda.so.1) was found"
        assert choose(found, {}).text == "none: no driver (libcuda.so.1) was found"
        assert section(found, {}).splitlines()[1] == (
            "    no GPU was found: no driver (libcuda.so.1) was found"
        )


def test_a_driver_may_have_no_device_for_this_process(fakes: Mapping[str, str]) -> None:
    found = take(fakes, FAKE_CUDA_DEVICES="0")
    assert found.devices == ()
    assert found.problem.startswith("the driver has no device for this process: ")
    assert found.cuda == "12.4"


def test_a_driver_that_does_not_start_says_its_status(fakes: Mapping[str, str]) -> None:
    assert take(fakes, FAKE_CUDA_FAIL="cuInit:1:803").problem == (
        "the driver cannot start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (driver and library versions do not "
        "match); the library and the kernel's module are of different versions; reboot, or match them"
    )
    assert take(fakes, FAKE_CUDA_FAIL="cuInit:1:12345").problem == "the driver cannot start: status 12345"


def test_a_function_that_fails_is_named(fakes: Mapping[str, str]) -> None:
    found = take(fakes, FAKE_CUDA_FAIL="cuDeviceTotalMem:1:999")
    assert found.devices == ()
    assert found.problem == ("cuDeviceTotalMem_v2 of the driver failed: CUDA_ERROR_UNKNOWN (unknown error)")


def test_libraries_that_crash_hurt_nobody(odd: Mapping[str, str]) -> None:
    found = take(odd, FAKE_CUDA_ABORT="1", FAKE_NCCL_ABORT="1")
    assert found.problem == "loading the driver ended with signal 6"
    assert found.nccl_problem == "loading NCCL ended with signal 6"


def test_a_library_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = tmp_path / "python"
    waits.write_text("#!/bin/sh\nexec sleep 60\n")
    waits.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(waits))
    assert inventory.ask_nccl(os.environ, 0.1) == (None, "NCCL did not answer in 0.1 s")


def test_nccl_that_is_too_old_is_told(fakes: Mapping[str, str]) -> None:
    found = take(fakes, FAKE_NCCL_VERSION="21705")
    assert found.nccl is None
    assert found.nccl_problem.startswith("NCCL 2.17.5 from /")
    assert found.nccl_problem.endswith(" is too old: 2.18.0 or newer is needed")
    assert take(fakes, FAKE_NCCL_VERSION="2804").nccl_problem.startswith("NCCL 2.8.4 from ")


def test_nccl_may_be_chosen(vendor: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(vendor)
    nowhere = {"LD_LIBRARY_PATH": "/nonexistent"}
    home = take(nowhere, HOROVOD_NCCL_HOME=str(tmp_path)).nccl
    assert home is not None
    assert os.path.samefile(home.file, vendor / "libnccl.so.2")
    for place in (str(vendor), f"{vendor}/libnccl.so.2"):
        assert take(nowhere, HOROVOD_NCCL_LIB=place).nccl == Nccl(22703, f"{vendor}/libnccl.so.2")
    # What was asked for is not replaced by another one.
    assert take({"LD_LIBRARY_PATH": str(vendor)}, HOROVOD_NCCL_HOME="/nonexistent").nccl_problem == (
        "HOROVOD_NCCL_HOME=/nonexistent has no libnccl.so.2"
    )


def test_nccl_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library")
    problem = take({}, HOROVOD_NCCL_LIB=str(tmp_path)).nccl_problem
    assert problem.startswith(f"{tmp_path}/libnccl.so.2 cannot be loaded: ")


def test_another_library_of_that_name_is_not_nccl(vendor: Path, tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").symlink_to(vendor / "libnvidia-ml.so.1")
    problem = take({}, HOROVOD_NCCL_LIB=str(tmp_path)).nccl_problem
    assert problem == f"{tmp_path}/libnccl.so.2 is not NCCL: it has no ncclGetVersion"


def test_nccl_of_a_wheel_comes_before_that_of_the_system(
    fakes: Mapping[str, str], vendor: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "nvidia_nccl_cu12-2.27.3.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.27.3\n")
    (wheel / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,,\n")
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes((vendor / "libnccl.so.2").read_bytes())
    found, problem = ask_with_path(tmp_path, fakes)
    assert (found, problem) == (Nccl(22703, str(library)), "")


def ask_with_path(folder: Path, fakes: Mapping[str, str]) -> tuple[Nccl | None, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return inventory.ask_nccl({**os.environ, **fakes})


@pytest.mark.parametrize(("code", "text"), [(22703, "2.27.3"), (21805, "2.18.5"), (2804, "2.8.4")])
def test_version_codes(code: int, text: str) -> None:
    assert version_text(code) == text


@pytest.mark.parametrize(
    ("served", "variables", "text"),
    [
        ({"NCCL", "STAGED"}, {}, "NCCL 2.27.3 from /"),
        ({"STAGED"}, {}, "staged through pinned host memory: NCCL 2.27.3 from /"),
        ({"NCCL", "STAGED"}, {"HOROVOD_NCCL_HOME": "/none"}, "staged through pinned host memory: HOROVOD_"),
        ({"NCCL", "STAGED"}, {"HOROVOD_GPU_OPERATIONS": "mpi"},
         "staged through pinned host memory: HOROVOD_GPU_OPERATIONS=MPI"),
        ({"STAGED"}, {"HOROVOD_GPU_OPERATIONS": "nccl"}, "none: HOROVOD_GPU_OPERATIONS=NCCL, but NCCL 2."),
        ({"STAGED"}, {"HOROVOD_GPU_OPERATIONS": "ddl"}, "none: HOROVOD_GPU_OPERATIONS: invalid choice: "),
        ({"PEER", "STAGED"}, {"HOROVOD_GPU_OPERATIONS": "peer"},
         "copies between peers; reductions are staged through pinned host memory: HOROVOD_GPU_OPER"),
        ({"STAGED"}, {"HOROVOD_GPU_OPERATIONS": "peer"}, "none: HOROVOD_GPU_OPERATIONS=PEER, but this "),
        (set(), {}, "none: this version takes tensors in host memory"),
        ({"NCCL", "STAGED"}, {"FAKE_CUDA_DEVICES": "0"}, "none: the driver has no device for this process: "),
    ],
)  # fmt: skip
def test_the_way_and_why(
    served: set[str], variables: dict[str, str], text: str, fakes: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(ways, "SERVED", frozenset(served))
    found = take(fakes, **variables)
    assert facts(found, variables)["device_support"]["way"].startswith(text)


def test_the_queries_follow_from_what_is_served(
    fakes: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "SERVED", frozenset({"STAGED"}))
    assert ways.nccl_code({**os.environ, **fakes}) == 0
    monkeypatch.setattr(ways, "SERVED", frozenset({"STAGED", "NCCL"}))
    assert ways.nccl_code({**os.environ, **fakes}) == 22703
    assert ways.nccl_code({**os.environ, **fakes, "FAKE_NCCL_VERSION": "21705"}) == 0
