"""The store of one job, as a process: prints its port, and serves until it is ended.

Arguments: the address to bind. The key is in HOROVOD_SECRET_KEY, the job's name in
HOROVOD_JOB_ID.
"""

from __future__ import annotations

import os
import sys
import threading

from horovod.bootstrap.store.server import StoreServer


def main() -> None:
    key, job = bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"]), os.environ["HOROVOD_JOB_ID"]
    with StoreServer(key, sys.argv[1], job=job) as server:
        print(server.address[1], flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
