"""One job of ranks that all run the same command, to its end."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.contract.world import ROOT, World, environment

from horovod.bootstrap.store.server import StoreServer

MOST_SHOWN = 12000
"""Characters of what failed ranks have said."""


def run(world: World, module: str, arguments: Sequence[str], limit_s: float) -> str:
    """What the ranks of ``world`` have printed, one rank's text after the other's. Each runs ``module``.
    Fails with these texts if a rank does not end with 0 within ``limit_s``.

    Each rank writes into a file of its own: ranks that share one write into each other's lines.
    """
    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    with StoreServer(key, job=job) as store, contextlib.ExitStack() as files:
        said = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(world.size)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=environment(rank, world, key, job, store.address),
                stdout=said[rank],
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
        for each in said:
            each.seek(0)
        text = "".join(each.read() for each in said)
    how = f"{module} {' '.join(arguments)}: exit codes {codes} (None: not within {limit_s:.0f} s)"
    assert not any(code != 0 for code in codes), f"{how}\n{text[-MOST_SHOWN:]}"
    return text
