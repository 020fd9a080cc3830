"""A limit for several activities together."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):
    """The limit is over."""


class Timeout:
    """A limit that begins now.

    Args:
        timeout: seconds.
        message: of the exception, with ``{activity}`` and ``{timeout}`` in it.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout_s = timeout
        self._end = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Seconds that are left, 0 if it is over."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """True once the time is over."""
        return time.monotonic() >= self._end

    def check_time_out_for(self, activity: str) -> None:
        """Go on if it is not over.

        Raises:
            TimeoutException: it is; ``activity`` is what was not finished.
        """
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout_s))
