"""The control groups that a process is in: files to read limits from, and whether one is frozen.

Also part of the agent's text (`horovod.launch.agent.bundle`): only the standard library, and Python 3.7.
"""

from __future__ import annotations

from pathlib import Path

from horovod.bootstrap.place.proc import lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GROUPS", "PROC", "control_groups", "is_frozen"]

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
