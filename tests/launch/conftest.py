"""What every test of the launcher starts from."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def foreground_signals() -> Iterator[None]:
    """Signals as a job in the foreground of a shell has them: nohup and background jobs ignore some, and
    what they start inherits that.
    """
    ignored = [
        signum
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(signum) is signal.SIG_IGN
    ]
    for signum in ignored:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    yield
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)
