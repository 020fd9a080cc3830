"""Notices that this process, or its whole machine, will be taken away soon: spot machines, batch systems.

A notice makes the driver do without the slot: at the next commit all ranks form a world without it, and this
process ends without an error. It comes as SIGTERM (while a function of ``elastic.run`` runs, unless the
script has a handler of its own), or as a file or an answer of a URL, for all processes of the host.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from horovod.bootstrap.place import starter
from horovod.bootstrap.store.membership import Leaving, Membership
from horovod.errors import HorovodInternalError

__all__ = ["Watch", "drained_by_signal", "noticed"]

_log = logging.getLogger("horovod")

POLL_S = 1.0
_ANSWER_S = 2.0
_MOST_BYTES = 1 << 12
_NOTHING = ("", "false", "none", "null")
"""Answers of clouds, with status 200, where there is no notice."""

# Each is demanded by one cloud's metadata service, and ignored by the others.
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_TOKEN_PATH = "/latest/api/token"

_told: Callable[[int, FrameType | None], None] | None = None  # the handler, while it is there
_mask: set[int] | None = None  # of the thread that forks, while it does


@contextmanager
def drained_by_signal(membership: Membership) -> Iterator[None]:
    """Within it, SIGTERM is a notice. A second one ends the process, as does the driver's, and that of an
    agent whose launcher is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield  # the script knows what to do
        return

    def told(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if starter.has_given_up():  # the launcher counts this process as lost already
            os.kill(os.getpid(), signal.SIGTERM)
        # The store is asked on a thread: this one may be anywhere.
        threading.Thread(target=_leave, args=(membership,), name="horovod-leave", daemon=True).start()

    global _told
    signal.signal(signal.SIGTERM, told)
    _told = told
    try:
        yield
    finally:
        _told = None
        if signal.getsignal(signal.SIGTERM) is told:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


# A forked child, such as a loader of data, is no worker: SIGTERM ends it. Until it has the default action the
# signal is held back, as an interpreter forgets in the child what it had not handled yet.


def _before_fork() -> None:
    global _mask
    if _told is not None:
        _mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    global _mask
    if _mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)
        _mask = None


def _after_fork_in_child() -> None:
    global _told, _mask
    if _told is not None and signal.getsignal(signal.SIGTERM) is _told:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _told = None
    if _mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)
        _mask = None


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


def _leave(membership: Membership) -> None:
    try:
        if membership.leave(Leaving("SIGTERM", host=False)):
            _log.warning("SIGTERM: this process leaves the job at the next commit.")
            return
    except HorovodInternalError as error:
        _log.warning("SIGTERM, and the driver cannot be told: %s", error)
    os.kill(os.getpid(), signal.SIGTERM)


class Watch:
    """Looks for a notice until there is one, on a thread of its own.

    Args:
        where: a path, or a URL beginning with ``http://`` or ``https://``; see `noticed`.
        found: is called with a sentence.
        poll_s: between two looks.
    """

    def __init__(self, where: str, found: Callable[[str], None], poll_s: float = POLL_S) -> None:
        self._where = where
        self._found = found
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="horovod-notice", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _look(self) -> None:
        while not self._stop.wait(self._poll_s):
            if why := noticed(self._where):
                self._found(why)
                return


def noticed(where: str) -> str:
    """The notice that a file, by being there, or a URL gives now; empty: none."""
    if where.startswith(("http://", "https://")):
        return _answered(where)
    return f"the file {where} is there" if os.path.exists(where) else ""


def _answered(url: str) -> str:
    """The notice that `url` gives now; empty: none, or it cannot be asked.

    It gives one by an answer with status 200 that says more than "false", "none" or "null": so do the
    metadata services of Amazon (also with a token), Google and Azure.
    """
    import http.client  # few jobs need these
    import urllib.error

    try:
        try:
            text = _get(url, _HEADERS)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                return ""
            text = _get(url, {"X-aws-ec2-metadata-token": _token(url)})
    except (OSError, ValueError, http.client.HTTPException) as error:
        _log.debug("no notice from %s: %s", url, error)
        return ""
    return "" if text.strip().lower() in _NOTHING else f"{url} says {text.strip()[:200]!r}"


def _get(url: str, headers: dict[str, str], method: str = "GET") -> str:
    import urllib.request

    request = urllib.request.Request(url, headers=headers, method=method)
    # No proxy: the services are of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ANSWER_S) as answer:
        text: bytes = answer.read(_MOST_BYTES)
    return text.decode(errors="replace")


def _token(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    return _get(f"{scheme}://{host}{_TOKEN_PATH}", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
