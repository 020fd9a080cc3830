"""First rank that failed, as an error names it."""

from __future__ import annotations

import re

from horovod.errors import HorovodError, HorovodInternalError, RendezvousError, ShutdownError
from horovod.runtime.ending import chain, text_of

__all__ = ["first_failed"]

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
