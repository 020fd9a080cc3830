"""The control groups (version 2) that this process is in, as files to read limits from.

Also part of the agent's text (`horovod.launch.agent.bundle`): only the standard library, and Python 3.7.
"""

from __future__ import annotations

from pathlib import Path

from horovod.bootstrap.proc import lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GROUPS", "PROC", "control_groups"]

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


def control_groups(proc: Path = PROC, groups: Path = GROUPS) -> Iterator[Path]:
    """Folders of the control groups of this process, from its own up to the root.

    Source: kernel documentation, cgroup-v2.
    """
    for line in lines(proc / "self" / "cgroup"):
        if not line.startswith("0::/"):
            continue
        folder = groups / line[len("0::/") :]
        while folder == groups or groups in folder.parents:
            yield folder
            folder = folder.parent
