"""Which cores a rank takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.devices.core_share import core_share

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
