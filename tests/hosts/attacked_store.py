"""Serves the store of an attacked job at the address that is its argument, until standard input ends."""

from __future__ import annotations

import logging
import os
import sys

from horovod.bootstrap.store.server import StoreServer


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    key, job = bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"]), os.environ["HOROVOD_JOB_ID"]
    with StoreServer(key, sys.argv[1], job=job) as server:
        print(server.address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
