"""Places of devices in a machine, the cores near them, and the share of these that a rank gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.devices.locality import adapters, as_text, core_share, locality_of, read_list, whole_cores


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


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5", (5,)), ("", ()), ("\n", ()), ("a-b", ()), ("3-1", ())],
)
def test_lists_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert read_list(text) == numbers


def test_lists_are_written() -> None:
    assert as_text([11, 0, 1, 2, 3, 8, 10, 3]) == "0-3,8,10-11"
    assert as_text([]) == ""


NOWHERE = Path("/nonexistent")
LOW, HIGH = tuple(range(8)), tuple(range(8, 16))


@pytest.mark.parametrize(
    ("near", "allowed", "shares"),
    [
        # Two ranks with a device on either node.
        ([LOW, LOW, HIGH, HIGH], range(16), [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]),
        ([LOW, HIGH, LOW], range(16), [(0, 1, 2, 3), HIGH, (4, 5, 6, 7)]),
        # Numbers that do not divide.
        ([LOW, LOW, LOW], range(16), [(0, 1), (2, 3, 4), (5, 6, 7)]),
        # Only some are allowed, or none of those near.
        ([LOW, HIGH], range(4, 10), [(4, 5, 6, 7), (8, 9)]),
        ([LOW, LOW], range(12, 16), [(12, 13), (14, 15)]),
        # Nothing is known.
        ([(), ()], range(4), [(0, 1), (2, 3)]),
        # More ranks than cores.
        ([LOW, LOW, LOW], range(2), [(0, 1), (0,), (1,)]),
    ],
)
def test_ranks_near_the_same_cores_divide_them(
    near: list[tuple[int, ...]], allowed: range, shares: list[tuple[int, ...]]
) -> None:
    assert [core_share(rank, near, allowed, NOWHERE) for rank in range(len(near))] == shares


def test_who_knows_only_its_own_device_divides_nothing() -> None:
    assert core_share(3, [HIGH], range(12), NOWHERE) == (8, 9, 10, 11)


def test_threads_of_a_core_are_not_divided(tmp_path: Path) -> None:
    for thread in range(8):
        file = tmp_path / "devices/system/cpu" / f"cpu{thread}" / "topology" / "thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{thread % 4},{thread % 4 + 4}\n")
    assert [core_share(rank, [LOW, LOW], range(8), tmp_path) for rank in range(2)] == [
        (0, 1, 4, 5),
        (2, 3, 6, 7),
    ]
