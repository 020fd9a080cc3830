"""Which devices are visible, without a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.devices.mask import of_rank, present, visible


@pytest.fixture
def four(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null", "nvidia0\n"):
        (tmp_path / name).touch()
    return tmp_path


def test_device_files_are_counted(four: Path, tmp_path: Path) -> None:
    assert present(four) == 4
    assert present(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("mask", "entries"),
    [
        (None, ["0", "1", "2", "3"]),
        ("3, 1", ["3", "1"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("1,4,2", ["1"]),
        ("1,,2", ["1"]),
        ("1,1", []),
        ("GPU-8932f937-d72c,GPU-11", ["GPU-8932f937-d72c", "GPU-11"]),
        ("MIG-1a2b,MIG-3c4d", ["MIG-1a2b", "MIG-3c4d"]),
    ],
)  # fmt: skip
def test_the_mask_decides(mask: str | None, entries: list[str], four: Path) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert visible(environ, four) == entries


def test_a_mask_counts_where_there_are_no_device_files(tmp_path: Path) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": "6,7"}, tmp_path) == ["6", "7"]
    assert visible({}, tmp_path) == []


def test_ranks_beyond_the_last_device_share() -> None:
    assert [of_rank(["6", "7"], rank) for rank in range(5)] == ["6", "7", "6", "7", "6"]
