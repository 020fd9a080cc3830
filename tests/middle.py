"""Somebody in the middle of connections, without the key: passes on what both sides say, or other things."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable

__all__ = ["Change", "Middle"]

Change = Callable[[int, bytes], bytes]
"""Of how many bytes went that way before, and those that come now: what to pass on instead."""


def nothing(_: int, data: bytes) -> bytes:
    return data


class Middle:
    """Listens on loopback, and connects each who comes with ``target``; a context manager.

    ``requests`` changes what dialers say, ``answers`` what they are told; both may be set at any time.
    ``hello``: what the last dialer said first.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.requests: Change = nothing
        self.answers: Change = nothing
        self.hello = b""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def __enter__(self) -> Middle:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for each in self._sockets:
            hang_up(each)
        for thread in self._threads[1:]:
            thread.join()
        for each in [self._listener, *self._sockets]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # the listener was shut down
            far = socket.create_connection(self._target)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [near, far]
            for source, sink, way in ((near, far, "requests"), (far, near, "answers")):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, way))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 16):
                if passed == 0 and way == "requests":
                    self.hello = data
                change: Change = getattr(self, way)
                sink.sendall(change(passed, data))
                passed += len(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of the two has gone


def hang_up(end: socket.socket) -> None:
    """Whoever was connected with ``end`` may have gone at any time, also while this runs."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
