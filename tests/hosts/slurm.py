"""A Slurm cluster on simulated hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.simulated import SimulatedHosts

__all__ = ["slurm_on", "why_no_slurm"]

_SCRIPT = str(Path(__file__).with_name("slurm_up.sh"))
_LIMIT_S = 100.0


def why_no_slurm() -> str:
    """Why there can be no cluster; empty if there can."""
    parts = {"srun": "slurm-wlm", "munged": "munge"}
    missing = [f"{part} is missing: {package}" for part, package in parts.items() if not shutil.which(part)]
    return "; ".join(missing)


@contextmanager
def slurm_on(hosts: SimulatedHosts) -> Iterator[dict[str, str]]:
    """A cluster of its own on ``hosts``; gives the environment of its clients."""
    folder = Path(tempfile.mkdtemp(prefix="farandole-simslurm-"))
    state = folder / "simslurm"
    environ = {**os.environ, **hosts.environment, "SLURM_SIM": "1", "SLURM_DIR": str(state)}
    try:
        with (folder / "log").open("w+") as log:  # no pipe: its daemons would keep it open
            up = subprocess.run(
                [_SCRIPT, "up", str(len(hosts.names)), "4"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_LIMIT_S,
                check=False,
            )
            assert up.returncode == 0, (folder / "log").read_text()
        yield {"SLURM_CONF": str(state / "slurm.conf")}
    finally:
        subprocess.run(
            [_SCRIPT, "down"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
        shutil.rmtree(folder, ignore_errors=True)
