"""The native module ``horovod._core``, with an engine that ``torch.compile`` can call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import FrameType
from typing import Any

from horovod import _core

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    return getattr(_core, name)


# Modules whose threads submit nothing: feeders of queues, pinned memory of loaders, progress bars, logs.
_LIBRARIES = frozenset(
    {
        "multiprocessing.queues",
        "multiprocessing.resource_sharer",
        "tensorboard.summary.writer.event_file_writer",
        "torch.utils.data._utils.pin_memory",
        "tqdm._monitor",
    }
)


def only_these(waiting: Collection[int]) -> bool:
    """True if no thread of Python but those in ``waiting`` could submit an operation.

    Threads of this package and of some libraries never do. A thread of a pool without work does not, either:
    some other thread would have to give it some.
    """
    known = {t.ident for t in threading.enumerate() if t.name.startswith(("horovod-", "farandole-"))}
    known.update(waiting)
    return all(ident in known or _submits_nothing(frame) for ident, frame in sys._current_frames().items())


def _submits_nothing(frame: FrameType) -> bool:
    if frame.f_globals.get("__name__") == "concurrent.futures.thread":
        return True
    entry: str | None = None
    outer: FrameType | None = frame
    while outer is not None:
        module = outer.f_globals.get("__name__")
        if module != "threading":
            entry = module
        outer = outer.f_back
    return entry in _LIBRARIES


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
