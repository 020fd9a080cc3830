"""One job of ranks that all run the same command, to its end."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.contract.world import ROOT, World, environment

from horovod.bootstrap.store import StoreServer

MOST_SHOWN = 12000
"""Characters of what failed ranks have said."""


def run(world: World, module: str, arguments: Sequence[str], limit_s: float) -> str:
    """What all ranks of ``world`` have printed, in the order of time. Each runs ``module``; fails with it if
    one does not end with 0 within ``limit_s``.
    """
    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    with StoreServer(key, job=job) as store, tempfile.TemporaryFile("w+") as said:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=environment(rank, world, key, job, store.address),
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            for rank in range(world.size)
        ]
        deadline = time.monotonic() + limit_s
        codes: list[int | None]
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in ranks]
        except subprocess.TimeoutExpired:
            codes = [process.poll() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        said.seek(0)
        text = said.read()
    how = f"{module} {' '.join(arguments)}: exit codes {codes} (None: not within {limit_s:.0f} s)"
    assert not any(code != 0 for code in codes), f"{how}\n{text[-MOST_SHOWN:]}"
    return text
