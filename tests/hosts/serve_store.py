"""The store of one job, as a process: prints its port, and serves until it is ended.

Arguments: the address to bind. The key is in HOROVOD_SECRET_KEY.
"""

from __future__ import annotations

import os
import sys
import threading

from horovod.bootstrap.store import StoreServer


def main() -> None:
    with StoreServer(bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"]), sys.argv[1]) as server:
        print(server.address[1], flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
