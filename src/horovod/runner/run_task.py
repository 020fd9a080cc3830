"""``python -m horovod.runner.run_task FOLDER``: one process of ``horovod.run``."""

import sys
from pathlib import Path

from horovod.launch.functions import call_in_worker
from horovod.runner.common.util.env import get_env_rank_and_size

if __name__ == "__main__":
    call_in_worker(Path(sys.argv[1]), get_env_rank_and_size()[0])
