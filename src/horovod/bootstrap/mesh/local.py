"""Descriptors that ranks pass to each other to share memory: a segment, two doorbells and a handle of the
process.

Each rank makes its own and passes the descriptors over an authenticated abstract Unix socket, which then
serves as the liveness connection. Nothing has a name in the file system, so nothing is left behind after a
crash.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import selectors
import socket
import stat
import struct
from dataclasses import dataclass

from horovod.bootstrap.place.control_groups import available_bytes
from horovod.bootstrap.place.descriptors import Descriptors
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.conversation import Conversation
from horovod.bootstrap.trust.session import TAG_BYTES, Session
from horovod.errors import BackendError

__all__ = ["LocalPeer", "Own", "exchange", "listen", "make_own"]

_HEADER = struct.Struct(">8sQB")  # magic, bytes of the segment, number of descriptors; a tag follows
_MESSAGE_BYTES = _HEADER.size + TAG_BYTES
_MAGIC = b"faran fd"
_INT_BYTES = array.array("i").itemsize


@dataclass(frozen=True)
class Own:
    """Descriptors that this rank shares. ``pidfd`` is -1 where the system has none."""

    segment_bytes: int
    memfd: int
    engine_bell: int
    waiter_bell: int
    pidfd: int

    @property
    def shared(self) -> list[int]:
        return [fd for fd in (self.memfd, self.engine_bell, self.waiter_bell, self.pidfd) if fd >= 0]


@dataclass(frozen=True)
class LocalPeer:
    """Descriptors that another rank of the group shares with this one; ``liveness`` is the connected Unix
    socket.
    """

    rank: int
    memfd: int
    engine_bell: int
    waiter_bell: int
    pidfd: int
    liveness: int


def listen() -> tuple[socket.socket, str]:
    """A Unix socket with a random abstract name. Returns it and the name, as text that JSON can carry."""
    name = unix.fresh_name()
    return unix.listen(name), name.removeprefix("@")


def make_own(segment_bytes: int, owner: Descriptors, base_bytes: int | None = None) -> Own:
    """Make what this rank shares. Memory for the segment is reserved now.

    Args:
        segment_bytes: its size.
        base_bytes: how much of it, from its start, gets memory; by default all. The rest is address space
            until the engine needs it.

    Raises:
        BackendError: there is not enough memory.
        OSError: the system refuses one of the calls, or the limit on files is lower.
    """
    base_bytes = segment_bytes if base_bytes is None else base_bytes
    left = available_bytes()
    if left is not None and base_bytes > left:
        raise _no_memory(base_bytes, f"only {left >> 20} MiB is left", errno.ENOMEM)
    memfd = owner.adopt(os.memfd_create("farandole", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(memfd, segment_bytes)
        os.posix_fallocate(memfd, 0, base_bytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise OSError(
                errno.EFBIG,
                f"a segment of {base_bytes >> 10} KiB is larger than the limit on files: see `ulimit -f`",
            ) from error
        if error.errno not in (errno.ENOMEM, errno.ENOSPC):
            raise
        raise _no_memory(base_bytes, str(error.strerror), error.errno) from error
    # No process, not even its maker, can shrink it any more, so access to a mapping never ends in SIGBUS.
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    engine_bell, waiter_bell = (
        owner.adopt(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)) for _ in range(2)
    )
    try:
        pidfd = owner.adopt(os.pidfd_open(os.getpid()))
    except OSError:
        pidfd = -1  # an old kernel or a filter: the liveness socket has to do
    return Own(segment_bytes, memfd, engine_bell, waiter_bell, pidfd)


def exchange(
    connection: socket.socket, session: Session, rank: int, own: Own, owner: Descriptors
) -> Conversation[LocalPeer]:
    """Send ours and take those of ``rank``; the connection becomes the liveness socket. All belongs to
    ``owner``.

    Raises:
        OSError: descriptors cannot be passed, or what arrived is not what it should be.
    """
    try:
        header = session.signer().signed(_HEADER.pack(_MAGIC, own.segment_bytes, len(own.shared)))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", own.shared))]
        while True:
            try:
                connection.sendmsg([header], rights)
                break
            except BlockingIOError:
                yield connection, selectors.EVENT_WRITE
        while True:
            try:
                received = connection.recvmsg(
                    _MESSAGE_BYTES, socket.CMSG_SPACE(4 * _INT_BYTES), socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                yield connection, selectors.EVENT_READ
        descriptors = _take(received[1], owner)
        if received[2] & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}; see `ulimit -n`")
        _check(received[0], session, descriptors, own.segment_bytes)
    except BaseException:
        connection.close()
        raise
    memfd, engine_bell, waiter_bell, *pidfd = descriptors
    liveness = owner.adopt(connection.detach())
    return LocalPeer(rank, memfd, engine_bell, waiter_bell, pidfd[0] if pidfd else -1, liveness)


def _no_memory(wanted_bytes: int, why: str, code: int) -> BackendError:
    return BackendError(
        f"{wanted_bytes >> 20} MiB of shared memory could not be reserved: {why}. "
        "Free some memory, raise the limit of the container, or start fewer ranks on this host.",
        library="system",
        code=code,
    )


def _take(ancillary: list[tuple[int, int, bytes]], owner: Descriptors) -> list[int]:
    taken = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            taken.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return [owner.adopt(descriptor) for descriptor in taken]


def _check(message: bytes, session: Session, descriptors: list[int], segment_bytes: int) -> None:
    """Check that the message is signed, and that the segment is as long as agreed and can never shrink:
    otherwise reading it could end this process.
    """
    if len(message) != _MESSAGE_BYTES:
        raise ConnectionResetError(errno.ECONNRESET, "the other side closed the connection")
    header, tag = message[: _HEADER.size], message[_HEADER.size :]
    if not session.checker().right(header, tag):
        raise OSError(errno.EPROTO, "its descriptors are not signed with the key of this connection")
    magic, size, count = _HEADER.unpack(header)
    if magic != _MAGIC or count not in (3, 4) or len(descriptors) != count:
        raise OSError(errno.EPROTO, f"{len(descriptors)} descriptors arrived, {count} were announced")
    status = os.fstat(descriptors[0])
    if size != segment_bytes or status.st_size != segment_bytes or not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EPROTO, f"its segment has {status.st_size} bytes, this rank's {segment_bytes}")
    if not fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError(errno.EPROTO, "its segment is not sealed")
