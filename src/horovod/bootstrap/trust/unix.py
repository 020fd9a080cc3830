"""Unix sockets that only processes of this network namespace reach: their names, and whose they are.

The names are abstract: there is no file, so nothing is left behind. Everybody in the namespace can see and
dial them, but the kernel says as which user he does, and who listens.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
from contextlib import ExitStack

__all__ = [
    "NAME_OF_KEY",
    "NO_PORT",
    "fresh_name",
    "is_name",
    "listen",
    "name_of",
    "other_user",
    "socket_address",
    "whence",
]

NO_PORT = 0
"""Port of an address whose host is the name of a socket."""

NAME_OF_KEY = "@"
"""In place of a name: it follows from the key of the job (``secret.name_of``)."""

_NAME = re.compile(r"@[A-Za-z0-9-]{1,100}")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_BACKLOG = 4096
"""Long, so that strangers do not fill it before the ranks come."""


def is_name(host: str) -> bool:
    """Return whether ``host`` is the name of such a socket as we write it: ``@name``."""
    return _NAME.fullmatch(host) is not None


def fresh_name() -> str:
    """One that nobody can know, and so not take first."""
    return f"@farandole-{secrets.token_hex(16)}"


def socket_address(name: str) -> str:
    """Return the system's form of ``name``."""
    return "\0" + name.removeprefix("@")


def name_of(listener: socket.socket) -> str:
    """The name of a socket of this kind."""
    return "@" + bytes(listener.getsockname()).removeprefix(b"\0").decode()


def listen(name: str) -> socket.socket:
    """Listen at ``name``. Raises ``OSError``: it is taken."""
    with ExitStack() as failed:
        listener = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.setblocking(False)
        listener.bind(socket_address(name))
        listener.listen(_BACKLOG)
        failed.pop_all()
    return listener


def other_user(connection: socket.socket) -> int | None:
    """The user at the other end of a Unix socket, if that is not our own: as the kernel knows him, of who
    listens from when he began to. None of any other connection.
    """
    if connection.family != socket.AF_UNIX:
        return None
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(said)[1]
    return None if user == os.geteuid() else user


def whence(connection: socket.socket) -> str:
    """Describe the other end of any socket, for messages."""
    try:
        if connection.family == socket.AF_UNIX:
            said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return "process {} of user {}".format(*_CREDENTIALS.unpack(said))
        return str(connection.getpeername()[0])
    except OSError:
        return "an address that is gone"
