"""The end of this interpreter's script, as far as it can be known (an uncaught exception, ``sys.exit``, or
the last line), and the rank that an error blames for it.

The ranks that still need this one, and the launcher, report it as the cause. Something that the script
survives is no cause: an exception that is only printed, or a ``sys.exit`` that is caught. What cannot be seen
here, such as ``raise SystemExit(3)``, is no cause either; the launcher has the exit status.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass

from horovod.errors import HorovodError, HorovodInternalError, RendezvousError, ShutdownError

__all__ = ["ScriptEnd", "chain", "describe", "first_failed", "harmless", "note_endings", "noted", "text_of"]

_MOST_CHARACTERS = 400
"""Of a text about an exception: it travels in records of 1024 bytes, with what others add to it."""

_MOST_CHAINED = 16


@dataclass(frozen=True)
class ScriptEnd:
    """``what`` happened, in one line, to go on after "rank 1 has ended: its script "; ``error`` if that was
    it.
    """

    what: str
    error: BaseException | None = None


class _Exit(SystemExit):
    """Raised by this module's ``sys.exit``. The place where it is deleted tells whether the script has caught
    it: only the interpreter deletes an exception while no frame runs.
    """

    def __del__(self) -> None:
        if sys._getframe(0).f_back is None and not _state.left:
            _state.left = True  # the first one deleted is the last one raised: the others are its context
            _state.status = self.code

    def __reduce__(self) -> tuple[type[SystemExit], tuple[object, ...]]:
        return SystemExit, self.args  # whoever gets it knows only that one, by this name


# Whoever shows or names it means what the script has called.
_Exit.__module__, _Exit.__name__, _Exit.__qualname__ = SystemExit.__module__, "SystemExit", "SystemExit"


class _State:
    """Notes so far; one object per process. A forked child begins with a new one, because it may
    become a rank itself; the hooks it inherits ask that one.
    """

    def __init__(self, installed: bool = False) -> None:
        self.installed = installed
        self.failed: Callable[[ScriptEnd], None] = lambda _: None
        self.of_a_thread: Callable[[ScriptEnd], None] = lambda _: None
        self.error: BaseException | None = None
        self.left = False
        self.status: object = None


_state = _State()


def note_endings(failed: Callable[[ScriptEnd], None], of_a_thread: Callable[[ScriptEnd], None]) -> None:
    """From now on note how the interpreter ends. Existing hooks go on working.

    Args:
        failed: is called at once when an uncaught exception ends the main thread, before Python waits for
            other threads, as these may wait for other ranks.
        of_a_thread: is called when one ends another thread; it may or may not end the process.
    """
    _state.failed, _state.of_a_thread = failed, of_a_thread
    if _state.installed:
        return
    _state.installed = True
    show, show_of_thread, leave = sys.excepthook, threading.excepthook, sys.exit

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        # Libraries also call this hook to print an error that they survive: then a frame runs.
        ends = sys._getframe(0).f_back is None and _ends_with_script()
        show(kind, error, trace)
        if ends:
            _state.error = error
            _state.failed(ScriptEnd(f"raised {describe(error)}", error))

    def of_thread(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            where = arguments.thread.name if arguments.thread is not None else "a thread"
            what = f"raised {describe(arguments.exc_value)} in thread {harmless(where)}"
            _state.of_a_thread(ScriptEnd(what, arguments.exc_value))
        show_of_thread(arguments)

    def leave_by_ours(status: object = None, /) -> None:
        # In other threads it ends nothing, and `threading` knows it by its exact type.
        kind = _Exit if threading.current_thread() is threading.main_thread() else SystemExit
        if status is None:
            raise kind
        raise kind(*status) if isinstance(status, tuple) else kind(status)

    sys.excepthook, threading.excepthook = excepthook, of_thread
    if isinstance(leave, types.BuiltinFunctionType):  # else the script has replaced it
        sys.exit = leave_by_ours  # type: ignore[assignment]


def noted() -> ScriptEnd | None:
    """The failure that ends the interpreter; called while it ends. None: the script came to its end, or ended
    in a way that cannot be seen.
    """
    error = _state.error
    if error is None and _ends_with_script():
        error = getattr(sys, "last_value", None)  # the script has replaced the hook
    if error is not None:
        return ScriptEnd(f"raised {describe(error)}", error)
    status = _state.status
    if status is None or status == 0:
        return None
    said = status if isinstance(status, int) else describe_text(str(status))
    return ScriptEnd(f"called sys.exit({said if isinstance(said, int) else repr(said)})")


def describe(error: BaseException) -> str:
    """``ValueError: boom`` in one line of limited length, without control characters and the job's key."""
    lines = traceback.format_exception_only(type(error), error)  # works also if str(error) fails
    return describe_text(lines[-1] if isinstance(error, SyntaxError) else lines[0])


def text_of(error: BaseException) -> str:
    """``str(error)``, also if that fails."""
    try:
        return str(error)
    except Exception as failure:
        return f"<its text cannot be made: {type(failure).__name__}>"


def describe_text(text: str) -> str:
    """``text`` in one line of limited length, without control characters and the job's key."""
    key = os.environ.get("HOROVOD_SECRET_KEY")
    if key:
        text = text.replace(key, "***")
    line = harmless(" ".join(text.split()))
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 4] + " ..."


def harmless(text: str, keep: str = "") -> str:
    """``text`` with control characters escaped, except those in ``keep``."""
    return "".join(
        each
        if each.isprintable() or each in keep
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def chain(error: BaseException | None) -> list[BaseException]:
    """``error``, what it was raised from or while handling, and so on."""
    found: list[BaseException] = []
    while error is not None and len(found) < _MOST_CHAINED:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _ends_with_script() -> bool:
    """Return whether an uncaught exception ends this interpreter: one at a prompt does not."""
    return not (sys.flags.interactive or hasattr(sys, "ps1"))


def _after_fork() -> None:
    global _state
    _state = _State(_state.installed)
    if hasattr(sys, "last_value"):
        del sys.last_value


os.register_at_fork(after_in_child=_after_fork)

_BY_RANK = re.compile(
    r"shut down by rank (\d+) on host"
    r"|\b[Rr]ank (\d+) on host \S+ (?:is gone|is lost|has ended)"
    r"|connection between rank \d+ on host \S+ and rank (\d+) on host"
)
"""Frameworks report our errors as errors of their own, which have the text only."""


def first_failed(own: int, error: BaseException | None, failure: BaseException | None) -> int | None:
    """The rank whose earlier failure made the script of rank ``own`` end; None: there is none.

    Args:
        error: what ended the script, if that was an exception.
        failure: why the world has failed, if it has. If the world has ended without a failure, a later
            exception is the script's own.
    """
    over = error is not None and isinstance(failure, ShutdownError)
    for each in chain(error) if over else [*chain(error), failure]:
        if each is None:
            continue
        named = _named(each)
        if named is not None and named != own:
            return named
    return None


def _named(error: BaseException) -> int | None:
    if isinstance(error, HorovodInternalError):
        if error.rank is None and isinstance(error, RendezvousError) and error.missing:
            return error.missing[0]
        return error.rank
    if isinstance(error, HorovodError):
        return None
    found = _BY_RANK.search(text_of(error))
    return int(found[found.lastindex or 0]) if found else None
