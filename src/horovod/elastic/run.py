"""The loop around a training function that goes on in a new world after failures and changes of the hosts."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from horovod.bootstrap.store.membership import Resumed
from horovod.elastic.departure import drained_by_signal
from horovod.elastic.notification import notification_manager
from horovod.elastic.state import State
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runtime import lifecycle
from horovod.runtime.part import Part

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
        clock = _Clock(part)
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
                    clock.resumed()
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    if not error.recoverable:
                        raise
                    clock.begin()
                    _log.warning("Going back to the last commit, to go on in a new world: %s", error)
                    state.restore()
                    clock.mark("restore")
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    clock.begin()
                    skip_sync = interrupt.skip_sync
                reset()
                # What rank 0 has heard of may be half of it: a newcomer that became ready meanwhile, or a
                # member that has failed, needs the state of rank 0, and all must do the same.
                skip_sync = skip_sync and (part is None or part.in_step)
                state.on_reset()
                clock.mark("reset")

    return wrapper


class _Clock:
    """Clock of a reset's phases; rank 0 tells the driver how long each took. Without a driver it does
    nothing.
    """

    def __init__(self, part: Part | None) -> None:
        self._part = part
        self._running = False

    def begin(self) -> None:
        """The world has failed, or is to be left."""
        if self._part is not None:
            self._part.took()
            self._part.mark("")
            self._running = True

    def mark(self, phase: str) -> None:
        if self._part is not None:
            self._part.mark(phase)

    def resumed(self) -> None:
        """Training goes on."""
        part = self._part
        if part is None or not self._running:
            return
        self._running = False
        part.mark("sync")
        took = part.took()
        if lifecycle.current().topology.rank == 0:
            # On a thread: training does not wait for the driver.
            resumed = Resumed(part.round, took)
            threading.Thread(target=_tell, args=(part, resumed), name="horovod-resumed", daemon=True).start()


def _tell(part: Part, resumed: Resumed) -> None:
    try:
        part.membership.resumed(resumed)
    except HorovodInternalError as error:
        _log.info("The driver was not told what the reset has cost: %s", error)
