"""The hosts of a job of Slurm, which grows and shrinks (``scontrol update``), and whose nodes fail."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping

from horovod.errors import LaunchError
from horovod.launch.elastic.discovery import DiscoveryFailed, HostDiscovery
from horovod.launch.placement.hosts import expand_list

__all__ = ["SlurmHosts"]

_LIMIT_S = 30.0
_GOING = re.compile(r"down|drain|drng|fail|maint|inval|power", re.IGNORECASE)
"""States of nodes that ranks should leave, or cannot use."""


class SlurmHosts(HostDiscovery):
    """Asks ``scontrol`` for the nodes of a job, and ``sinfo`` for their states.

    Args:
        job_id: of the allocation.
        slots: of each host at the start. A node that comes later has as many as most of them.
    """

    def __init__(self, job_id: str, slots: Mapping[str, int]) -> None:
        self._job_id = job_id
        self._slots = dict(slots)
        self._usual = Counter(slots.values()).most_common(1)[0][0] if slots else 1

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """
        Raises:
            DiscoveryFailed: Slurm does not answer, or the job does not run.
        """
        said = _ask("scontrol", "-o", "show", "job", self._job_id)
        fields = dict(re.findall(r"(?:^|\s)(JobState|NodeList)=(\S*)", said))
        if fields.get("JobState") != "RUNNING":
            raise DiscoveryFailed(
                f"Slurm job {self._job_id} is not running: its state is {fields.get('JobState', 'unknown')}."
            )
        listed = fields.get("NodeList", "")
        if not listed or listed == "(null)":
            return {}
        try:
            names = expand_list(listed)
            states = _ask("sinfo", "-h", "-N", "-o", "%N %T", "-n", listed)
        except LaunchError as error:
            raise DiscoveryFailed(f"Slurm job {self._job_id}: {error}") from error
        going = {line.split()[0] for line in states.splitlines() if _GOING.search(line.partition(" ")[2])}
        return {name: self._slots.get(name, self._usual) for name in names if name not in going}


def _ask(*words: str) -> str:
    try:
        done = subprocess.run(
            words, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiscoveryFailed(f"{words[0]} cannot be asked: {error}.") from error
    if done.returncode:
        raise DiscoveryFailed(
            f"{' '.join(words)} ended with status {done.returncode}: {done.stderr.strip()[-200:]}."
        )
    return done.stdout
