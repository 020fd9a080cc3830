"""Serves the store of an attacked job at the address that is its argument, until standard input ends."""

from __future__ import annotations

import logging
import os
import sys

from horovod.bootstrap.store import StoreServer


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    with StoreServer(bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"]), sys.argv[1]) as server:
        print(server.address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
