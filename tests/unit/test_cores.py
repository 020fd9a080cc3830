from __future__ import annotations

import os
from pathlib import Path

import pytest

from horovod.bootstrap.place.cores import (
    Share,
    cores_per_rank,
    fewest_cores_per_rank,
    own_share,
    usable_cores,
)


def groups(folder: Path, **limits: str) -> tuple[Path, Path]:
    proc, root = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/pod/container\n")
    for name, limit in limits.items():
        place = {"root": root, "pod": root / "pod", "container": root / "pod" / "container"}[name]
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.max").write_text(f"{limit}\n")
    return proc, root


def test_this_process_may_run_somewhere() -> None:
    share = own_share()
    assert share.cores.bit_count() == len(os.sched_getaffinity(0))
    assert all(share.cores >> core & 1 for core in os.sched_getaffinity(0))
    assert share.quota is None or share.quota > 0


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"pod": "max 100000"}, None),
        ({"container": "150000 100000"}, 1.5),
        ({"pod": "400000 100000", "container": "800000 100000"}, 4.0),
        ({"container": "nonsense"}, None),
        ({"container": "100 0"}, None),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, limits: dict[str, str], quota: float | None) -> None:
    assert own_share(*groups(tmp_path, **limits)).quota == quota


@pytest.mark.parametrize(
    ("shares", "machines", "expected"),
    [
        ([Share(0b11, None)] * 2, "aa", [1.0, 1.0]),  # both may use both
        ([Share(0b01, None), Share(0b10, None)], "aa", [1.0, 1.0]),  # each is bound to its own
        ([Share(0xFF, None)] * 2, "aa", [4.0, 4.0]),
        ([Share(0xFF, None)] * 2, "ab", [8.0, 8.0]),
        ([Share(0xFF, 2.0)] * 2, "aa", [1.0, 1.0]),  # one container
        ([Share(0xFF, 2.0), Share(0xFF, 3.0)], "aa", [2.0, 3.0]),  # a container for each
        ([Share(0xFF, 100.0)] * 2, "aa", [4.0, 4.0]),
        ([Share(0b1, None), Share(0xF0, None), Share(0b1, None)], "aba", [0.5, 4.0, 0.5]),
    ],
)
def test_cores_are_shared_out_on_each_machine(
    shares: list[Share], machines: str, expected: list[float]
) -> None:
    assert [cores_per_rank(rank, shares, machines) for rank in range(len(shares))] == expected
    assert fewest_cores_per_rank(shares, machines) == min(expected)


@pytest.mark.parametrize(
    ("limit", "cores", "limited"),
    [("max 100000", 8, False), ("250000 100000", 2, True), ("50000 100000", 1, True)],
)
def test_cores_are_those_of_the_process_as_far_as_its_group_allows(
    limit: str, cores: int, limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores(*groups(tmp_path, container=limit)) == (cores, limited)
