"""Starting a failed job again, from where its script has left a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from horovod.errors import WorkerFailed
from horovod.launch.contracts.errors import LauncherFailed
from horovod.launch.output.console import Console

__all__ = ["RESTARTS_VARIABLE", "with_restarts"]

RESTARTS_VARIABLE = "HOROVOD_RESTART_COUNT"
"""Number of times that the job has been started again: 0 at first."""


def with_restarts(
    most: int,
    run: Callable[[Mapping[str, str]], None],
    environ: Mapping[str, str],
    console: Console,
    done: int = 0,
) -> None:
    """Call ``run`` with the environment that ranks start from; again, ``most`` times, when a rank has failed.

    What cannot be helped by another start is not tried again: a command that cannot be run, hosts that cannot
    be reached, a signal to the launcher. ``done``: restarts that there have been.

    Raises:
        HorovodError: what ``run`` has raised last.
    """
    for restarts in range(done, most + 1):
        try:
            run({**environ, RESTARTS_VARIABLE: str(restarts)} if most else environ)
            return
        except (WorkerFailed, LauncherFailed) as error:
            if restarts == most:
                raise
            console.tell(str(error))
            console.tell(f"starting the job again ({restarts + 1} of {most}: --max-restarts)")
