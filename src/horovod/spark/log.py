"""Messages of ranks for the driver, through the job's store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from horovod.bootstrap.place.store_address import read_store
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.trust.secret import own_secret
from horovod.errors import HorovodError
from horovod.launch.output.console import TextSink
from horovod.runtime.ending import harmless

__all__ = ["LOG", "MOST_CHARACTERS", "listener", "log_to_driver"]

LOG = "log/"
"""Below it each rank has a key of its own, whose value is its newest message."""

MOST_CHARACTERS = 4000
"""Of one message."""

_CONNECT_S = 10.0
_LINES = "\n\t"

_lock = threading.Lock()
_client: StoreClient | None = None
_owner = 0


def log_to_driver(message: str) -> None:
    """Show a message on the driver, below the cell of a notebook that has called ``HorovodRunner.run``.

    Args:
        message: what is longer than 4000 characters is cut.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(message, str):
        raise TypeError(f"log_to_driver takes a text, not {type(message).__name__}.")
    text = message if len(message) <= MOST_CHARACTERS else message[:MOST_CHARACTERS]
    with _lock:
        if not _send(text):
            print(text, flush=True)


def listener(stream: TextSink) -> Callable[[str, Any], None]:
    """Make a listener for ``Job.listeners`` that writes the messages of ranks to a stream."""

    def heard(rank: str, value: Any) -> None:
        if isinstance(value, str):
            stream.write(f"{harmless(value[:MOST_CHARACTERS], _LINES)}\n")
            stream.flush()

    return heard


def _send(text: str) -> bool:
    """Send ``text`` to the driver; False if this process is no rank, or its launcher is gone."""
    global _client, _owner
    rank = os.environ.get("HOROVOD_RANK")
    if rank is None:
        return False
    try:
        if _client is None or _owner != os.getpid():
            places, key = read_store(os.environ), own_secret(os.environ)
            if not places or not key:
                return False
            job = os.environ.get("HOROVOD_JOB_ID", "")
            _client = StoreClient(places, key, _CONNECT_S, f"rank {rank}", job=job)
            _owner = os.getpid()
        _client.set(f"{LOG}{rank}", text)
    except HorovodError:
        _client = None
        return False
    return True
