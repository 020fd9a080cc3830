"""``python -m horovod.runner.launch`` and the console script ``horovodrun``."""

import signal
import sys

# Until a job is watched there is nothing to end but this process: Ctrl-C does that without a traceback.
_IS_PROGRAM = __name__ == "__main__" or sys.argv[0].endswith("horovodrun")
if _IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# Those that are meant for ranks end nothing, whenever they come.
for _signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
    if _IS_PROGRAM and signal.getsignal(_signum) == signal.SIG_DFL:
        signal.signal(_signum, lambda *_: None)

from horovod.launch.cli import run_commandline  # noqa: E402

__all__ = ["run_commandline"]

if __name__ == "__main__":
    sys.exit(run_commandline())
