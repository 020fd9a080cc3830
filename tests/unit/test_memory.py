from __future__ import annotations

import os
from pathlib import Path

import pytest

from horovod.bootstrap.mesh import local
from horovod.bootstrap.place import control_groups
from horovod.bootstrap.place.descriptors import Descriptors
from horovod.errors import BackendError


def machine(folder: Path, available_kib: int, group: str = "/") -> tuple[Path, Path]:
    proc, groups = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 99999 kB\nMemAvailable:   {available_kib} kB\n")
    (proc / "self" / "cgroup").write_text(f"1:name=systemd:/x\n0::{group}\n")
    return proc, groups


def limit(folder: Path, most: str, used: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


def test_this_machine_has_memory() -> None:
    assert (control_groups.available_bytes() or 0) > 1 << 20


def test_machine_without_limits(tmp_path: Path) -> None:
    assert control_groups.available_bytes(*machine(tmp_path, 1000)) == 1000 * 1024


def test_unknown_system(tmp_path: Path) -> None:
    assert control_groups.available_bytes(tmp_path / "proc", tmp_path / "groups") is None


def test_tightest_control_group_counts(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, 1000, "/pod/container")
    limit(groups, "max", 7)
    limit(groups / "pod", "9000", 5000, cache=1000)
    limit(groups / "pod" / "container", "8000", 1000)
    assert control_groups.available_bytes(proc, groups) == 5000


def test_segment_larger_than_what_is_left_is_refused_before_it_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: 1 << 20)
    owner = Descriptors()
    with pytest.raises(
        BackendError, match="2 MiB of shared memory could not be reserved: only 1 MiB is left"
    ):
        local.make_own(2 << 20, owner)
    owner.close()


def test_only_the_base_of_a_segment_takes_memory() -> None:
    owner = Descriptors()
    own = local.make_own(64 << 20, owner, 1 << 20)
    status = os.fstat(own.memfd)
    assert status.st_size == 64 << 20
    assert status.st_blocks * 512 == 1 << 20
    owner.close()


def test_a_segment_is_refused_for_its_base_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: 1 << 20)
    owner = Descriptors()
    assert local.make_own(64 << 20, owner, 1 << 20).segment_bytes == 64 << 20
    owner.close()
