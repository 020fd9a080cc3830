"""``python -m horovod.runner.run_task``: one process of ``horovod.run``."""

import os
import sys

from horovod.bootstrap.place.interpreter import take_path
from horovod.launch.calls.functions import DESCRIPTORS_VARIABLE, call_in_worker

if __name__ == "__main__":
    given = os.environ.pop(DESCRIPTORS_VARIABLE, "")  # not for what the function starts
    if not given:
        sys.exit("horovod.runner.run_task is started by horovod.run only")
    call, result = map(int, given.split(","))
    for descriptor in (call, result):
        os.set_inheritable(descriptor, False)
    take_path()
    call_in_worker(call, result)
