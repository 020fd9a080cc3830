"""A launcher that starts workers on this machine and is killed in the middle; it is run as a program.

Arguments: secret, patience in seconds, number of workers, what each does, and whether their agent is stopped
before: ``stopped``, or nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from tests.launch.fleets import LIMIT_S, fleet_of

from horovod.bootstrap.place.proc import stat_of


def stop(pid: int) -> None:
    """Stop it, and wait until it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    give_up_at = time.monotonic() + LIMIT_S
    while (stat := stat_of(pid)) and stat.state != "T":
        assert time.monotonic() < give_up_at
        time.sleep(0.005)  # nothing tells who is no parent


def main() -> None:
    secret, patience_s, count, do, *more = sys.argv[1:]
    with fleet_of("sh", "-c", 'eval "$DO"', patience_s=float(patience_s), secret=secret) as running:
        running.reach()
        pids = [running.start(number, DO=do) for number in range(int(count))]
        print(*pids, sep="\n", flush=True)
        running.printed("ready")
        if more == ["stopped"]:
            for number in range(int(count)):
                running.printed(f"[{number}]<stdout>:ready\n")
            for agent in {stat.parent for pid in pids if (stat := stat_of(pid))}:
                stop(agent)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
