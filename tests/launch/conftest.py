"""What every test of the launcher starts from."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping

import pytest
from tests.vendor.libraries import build


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


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process that finds libraries of a vendor of devices."""
    return build(tmp_path_factory.mktemp("vendor"))
