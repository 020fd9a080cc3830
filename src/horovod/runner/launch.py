"""``python -m horovod.runner.launch`` and the console script ``horovodrun``."""

import sys

from horovod.launch.cli import run_commandline

__all__ = ["run_commandline"]

if __name__ == "__main__":
    sys.exit(run_commandline())
