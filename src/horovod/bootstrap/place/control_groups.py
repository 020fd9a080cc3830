"""Control groups of a process: the files to read limits from, whether one is frozen, and the memory that they
and the machine leave before the kernel starts to end processes.

Also part of the agent's text (`horovod.launch.agent.bundle`): only the standard library, and Python 3.7.
"""

from __future__ import annotations

from pathlib import Path

from horovod.bootstrap.place.proc import lines, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GROUPS", "PROC", "available_bytes", "control_groups", "is_frozen"]

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


def control_groups(proc: Path = PROC, groups: Path = GROUPS) -> Iterator[Path]:
    """Folders of the control groups (version 2) of this process, from its own up to the root.

    Source: kernel documentation, cgroup-v2.
    """
    for line in lines(proc / "self" / "cgroup"):
        if not line.startswith("0::/"):
            continue
        folder = groups / line[len("0::/") :]
        while folder == groups or groups in folder.parents:
            yield folder
            folder = folder.parent


def is_frozen(pid: int, proc: Path = PROC, groups: Path = GROUPS) -> bool:
    """Return whether a control group of process ``pid``, or one above, is frozen: the process does nothing
    until the group is thawed.

    Source: kernel documentation, cgroup-v2, ``cgroup.events``; cgroup-v1, freezer-subsystem.
    """
    return any(map(_says_frozen, _freezer_files(pid, proc, groups)))


def _freezer_files(pid: int, proc: Path, groups: Path) -> Iterator[Path]:
    """Files that say whether a group of this process is frozen; some of them are not there."""
    for line in lines(proc / str(pid) / "cgroup"):
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        if "freezer" in controllers.split(","):
            yield groups / "freezer" / below / "freezer.state"
        elif not controllers:
            yield groups / below / "cgroup.events"
            yield groups / "unified" / below / "cgroup.events"  # beside groups of version 1


def _says_frozen(file: Path) -> bool:
    return not {"FROZEN", "frozen 1"}.isdisjoint(lines(file))


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """The least that the machine and each control group (version 2) of this process have left; None if
    unknown.

    Source: proc(5), ``MemAvailable``; kernel documentation, cgroup-v2, ``memory.max`` and ``memory.stat``.
    """
    return min((*_machine(proc), *_control_groups(proc, groups)), default=None)


def _machine(proc: Path) -> Iterator[int]:
    available = value_of("MemAvailable", proc / "meminfo")
    if available is not None:
        yield int(available.split()[0]) * 1024


def _control_groups(proc: Path, groups: Path) -> Iterator[int]:
    for folder in control_groups(proc, groups):
        limit = "".join(lines(folder / "memory.max"))
        used = "".join(lines(folder / "memory.current"))
        if limit.isdecimal() and used.isdecimal():
            cache = sum(
                int(entry.split()[1])
                for entry in lines(folder / "memory.stat")
                if entry.startswith("inactive_file ")
            )
            yield max(0, int(limit) - int(used) + cache)
