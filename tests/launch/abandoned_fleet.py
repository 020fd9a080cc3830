"""A launcher that starts workers on this machine and is killed in the middle; it is run as a program.

Arguments: secret, patience in seconds, number of workers, and what each does.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.launch.fleets import fleet_of


def main() -> None:
    secret, patience_s, count, do = sys.argv[1:]
    with fleet_of("sh", "-c", 'eval "$DO"', patience_s=float(patience_s), secret=secret) as running:
        running.reach()
        for number in range(int(count)):
            print(running.start(number, DO=do), flush=True)
        running.printed("ready")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
