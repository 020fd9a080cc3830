"""What a tree of sysfs tells."""

from __future__ import annotations

from pathlib import Path

from horovod.devices.locality import adapters, locality_of, whole_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_node_and_cores_of_a_device(tmp_path: Path) -> None:
    folder = tmp_path / "bus" / "pci" / "devices" / "0000:1b:00.0"
    write(folder / "numa_node", "1\n")
    write(folder / "local_cpulist", "32-35,96-99\n")
    assert locality_of("0000:1B:00.0", tmp_path) == (1, (32, 33, 34, 35, 96, 97, 98, 99))
    write(folder / "numa_node", "-1\n")  # a machine with one node, or one that says nothing
    assert locality_of("0000:1B:00.0", tmp_path).numa_node is None
    assert locality_of("0000:9f:00.0", tmp_path) == (None, ())


def test_adapters_with_their_nodes(tmp_path: Path) -> None:
    assert adapters(tmp_path) == {}
    write(tmp_path / "class" / "infiniband" / "mlx5_1" / "device" / "numa_node", "1\n")
    write(tmp_path / "class" / "infiniband" / "mlx5_0" / "device" / "numa_node", "-1\n")
    assert adapters(tmp_path) == {"mlx5_0": None, "mlx5_1": 1}


def test_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    for first in (0, 1):
        for thread in (first, first + 64):
            file = tmp_path / "devices/system/cpu" / f"cpu{thread}" / "topology/thread_siblings_list"
            write(file, f"{first},{first + 64}\n")
    assert whole_cores((0, 1, 64, 65), tmp_path) == [(0, 64), (1, 65)]
    assert whole_cores((1, 64), tmp_path) == [(1,), (64,)]
    assert whole_cores((7, 9), tmp_path) == [(7,), (9,)]
