"""The native module ``horovod._core``, with an engine that ``torch.compile`` can call."""

from __future__ import annotations

import sys
import threading
from typing import Any

from horovod import _core

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    return getattr(_core, name)


def only_these(waiting: int) -> bool:
    """True if ``waiting`` threads are all that run Python here, without those that this package started."""
    own = sum(thread.name.startswith(("horovod-", "rueda-")) for thread in threading.enumerate())
    return len(sys._current_frames()) <= waiting + own


class Engine(_core.Engine):
    """The native engine. Methods that operations call are bound once, as attributes of the object.

    ``torch.compile`` cannot trace a native method and leaves the call to Python, as it should; but from a
    method that it finds in the class it makes a call without ``self``.
    """

    def __init__(self, settings: dict[str, object]) -> None:
        super().__init__(settings)
        for name in ("submit", "poll", "wait", "wait_all"):
            if hasattr(_core.Engine, name):  # a native part that was built earlier may lack some
                setattr(self, name, getattr(super(), name))
        self.watch_threads(only_these)

    def shutdown(self, script_over: bool = False, failure: str = "") -> None:
        super().shutdown(script_over, failure)
        self.__dict__.clear()  # bound methods refer back to the engine
