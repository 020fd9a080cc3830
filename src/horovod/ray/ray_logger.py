"""Messages of ranks for callbacks of the driver, through a queue of Ray."""

from __future__ import annotations

import time
import warnings
from typing import Any

__all__ = ["await_taken", "configure", "log"]

_POLL_S = 0.05


class _State:
    """Queue for messages of this process."""

    queue: Any = None
    warned = False


_state = _State()


def configure(queue: Any) -> None:
    """From now on messages go to ``queue`` (a ``ray.util.queue.Queue``); None: nowhere."""
    _state.queue = queue


def log(info_dict: dict[str, Any]) -> None:
    """Call the callbacks of the driver (``RayExecutor.run(..., callbacks=[...])``) with ``info_dict``, from
    any rank. Returns when the driver's queue has it.

    Where no callback listens, it is dropped, with one warning.
    """
    if _state.queue is not None:
        _state.queue.put(info_dict)
    elif not _state.warned:
        _state.warned = True
        warnings.warn(
            "horovod.ray.ray_logger.log: nobody listens. Give callbacks to run() or execute().", stacklevel=2
        )


def await_taken() -> None:
    """Return when the driver has taken all messages out of the queue."""
    while _state.queue is not None and not _state.queue.empty():
        time.sleep(_POLL_S)  # the queue tells nobody
