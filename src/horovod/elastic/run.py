"""The loop around a training function that goes on in a new world after failures and changes of the hosts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from horovod.elastic.departure import drained_by_signal
from horovod.elastic.notification import notification_manager
from horovod.elastic.state import State
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runtime import lifecycle

__all__ = ["run_fn"]

_log = logging.getLogger("horovod")


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Wrap ``func(state, ...)`` so that it is called again in a new world when the old one has failed.

    Before the first call, and after each failure, the state is that of rank 0. A process that comes to a
    world that is at work waits here until it is let in. Where no driver runs, hosts do not change, and a
    world is formed again by the processes that are left of it: with one missing that fails.

    Args:
        func: its first argument is a :class:`~horovod.elastic.state.State`. It may be called several times.
        reset: leaves the world and forms another one. What it raises is not caught.

    Returns:
        A function with the arguments and the result of ``func``. An exception other than
        ``HostsUpdatedInterrupt`` and a ``HorovodInternalError`` that is ``recoverable`` ends it: what would
        fail in every world is not tried again.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.register_listener(state)
        skip_sync = False
        part = lifecycle.part()
        with ExitStack() as stack:
            stack.callback(notification_manager.remove_listener, state)
            if part is not None:
                stack.enter_context(drained_by_signal(part.membership))
            if lifecycle.enter():
                state.on_reset()  # what the script has made of the rank and size that it was told is not true
            while True:
                notification_manager.init()
                try:
                    if not skip_sync:
                        state.sync()
                    if part is not None:
                        part.synced = True
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    if not error.recoverable:
                        raise
                    _log.warning("Going back to the last commit, to go on in a new world: %s", error)
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    skip_sync = interrupt.skip_sync
                reset()
                # What rank 0 has heard of may be half of it: a newcomer that became ready meanwhile, or a
                # member that has failed, needs the state of rank 0, and all must do the same.
                skip_sync = skip_sync and (part is None or part.in_step)
                state.on_reset()

    return wrapper
