"""The socket at which an agent waits for another launcher when the first one is gone."""

from __future__ import annotations

import errno
import os
import select
import time

from horovod.launch.agent.terms import GIVE_UP_S, GRACE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

# `socket` costs more to import than all the rest of an agent: only one that may wait pays for it. For that
# reason the modules of horovod.bootstrap about sockets are not used here.


class ReconnectSocket:
    """An abstract Unix socket of this host, at which only processes of the same user are let in.

    Args:
        name: nobody else knows it.
        patience_s: how long another launcher is waited for.

    Raises:
        OSError: an agent is behind it that cannot be ended.
    """

    def __init__(self, name: str, patience_s: float) -> None:
        self.patience_s = patience_s
        self._socket = _listen(name)

    def fileno(self) -> int:
        return self._socket.fileno()

    def let_in(self) -> socket.socket | None:
        """Accept a connection of the same user; None: there is none, or a stranger's, which was closed."""
        try:
            visitor, _ = self._socket.accept()
        except OSError:
            return None
        if _user_of(visitor) == os.geteuid():
            return visitor
        visitor.close()
        return None


def relay(name: str, first: bytes) -> bool:
    """Carry what the launcher and the agent at the socket of this name say to each other, until one has
    ended; `first` was read already. Whether there was one.
    """
    try:
        agent = _enter(name)
    except OSError:
        return False
    with agent:
        for descriptor in (0, 1):
            os.set_blocking(descriptor, True)
        agent.sendall(first)
        poller = select.poll()
        for source in (0, agent.fileno()):
            poller.register(source, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                try:
                    if descriptor == 0:
                        data = os.read(0, 1 << 16)
                        agent.sendall(data)
                    else:
                        data = agent.recv(1 << 16)
                        _write(data)
                except OSError:  # one of them is gone
                    return True
                if not data:
                    return True


def _listen(name: str) -> socket.socket:
    """Listen there, in place of an agent that a launcher has given up."""
    import socket

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    give_up_at = time.monotonic() + GRACE_S + GIVE_UP_S
    while True:
        try:
            listener.bind("\0" + name)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > give_up_at:
                listener.close()
                raise
        _end_former(name, give_up_at)
    listener.listen(4)
    return listener


def _end_former(name: str, give_up_at: float) -> None:
    try:
        with _enter(name) as agent:
            agent.sendall(b'{"kill": true}\n')
            agent.settimeout(max(0.1, give_up_at - time.monotonic()))
            while agent.recv(1 << 16):
                pass
    except OSError:  # it has ended meanwhile, or is somebody else's
        time.sleep(0.05)  # nothing tells that a name is free again


def _enter(name: str) -> socket.socket:
    import socket

    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        agent.connect("\0" + name)
        if _user_of(agent) != os.geteuid():
            raise PermissionError(errno.EPERM, "the agent is another user's")
    except OSError:
        agent.close()
        raise
    return agent


def _user_of(connection: socket.socket) -> int:
    import socket
    import struct

    credentials = struct.Struct("3i")  # process, user, group
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    user: int = credentials.unpack(said)[1]
    return user


def _write(data: bytes) -> None:
    with memoryview(data) as whole:
        at = 0
        while at < len(data):
            at += os.write(1, whole[at:])
