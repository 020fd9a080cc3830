"""Memory of a saved state that a rank lends to others of its host: they map it, and nothing is copied."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import weakref
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Loan", "StateMemory"]

_log = logging.getLogger("horovod")

_NAME = "farandole-state"
_TOKEN_BYTES = 32


class Loan(NamedTuple):
    """Place at which other processes of the host find lent memory, and the token by which they know it."""

    pid: int
    descriptor: int
    size: int
    token: bytes


class StateMemory:
    """Memory of one saved state: this rank's own, which it writes to, or another one's, for reading.

    What is lent is not written to while anybody has it. Each borrower holds a lock on the file, which the
    kernel takes from a process that ends; the memory itself lives as long as somebody maps it. So a copy
    outlives the rank that has made it.

    Attributes:
        owned: this rank has made it.
        content: its bytes. What is written to a borrowed one is seen by nobody else.
    """

    def __init__(self, descriptor: int, size: int, token: bytes, *, owned: bool) -> None:
        self.owned = owned
        self._descriptor, self._size, self._token = descriptor, size, token
        self._lent = self._settled = False
        whole = mmap.mmap(
            descriptor, size + _TOKEN_BYTES, flags=mmap.MAP_SHARED if owned else mmap.MAP_PRIVATE
        )
        if owned:
            whole[size:] = token
        elif whole[size:] != token:
            whole.close()
            raise OSError("the memory there is another one")
        self.content: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(whole, np.uint8, size)
        weakref.finalize(self, _let_go, descriptor, os.getpid())

    @classmethod
    def made(cls, size: int) -> StateMemory | None:
        """New memory; None if the system has no such memory for others. Its pages are taken now: there is
        no error for those that are missing later."""
        try:
            descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        except OSError as error:
            _log.debug("no memory to lend to others: %s", error)
            return None
        try:
            os.posix_fallocate(descriptor, 0, size + _TOKEN_BYTES)
            return cls(descriptor, size, secrets.token_bytes(_TOKEN_BYTES), owned=True)
        except OSError as error:
            _log.debug("no %d bytes to lend to others: %s", size, error)
            os.close(descriptor)
            return None

    @classmethod
    def borrowed(cls, loan: Loan) -> StateMemory | None:
        """Map lent memory; None if this process cannot: it is on another host, or may not look into the
        lender.
        """
        place = f"/proc/{loan.pid}/fd/{loan.descriptor}"
        descriptor = -1
        try:
            # On another host, or in a container of its own, the number is of any process and any file, and
            # to open that can have effects.
            if not os.readlink(place).startswith(f"/memfd:{_NAME}"):
                raise OSError("it is another file")
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_size != loan.size + _TOKEN_BYTES:
                raise OSError("its size is another one")
            return cls(descriptor, loan.size, loan.token, owned=False)
        except OSError as error:
            _log.debug("the saved state of rank 0 is copied, as %s cannot be mapped: %s", place, error)
            if descriptor >= 0:
                os.close(descriptor)
            return None

    def lend(self) -> Loan:
        """Let others borrow it, until :meth:`settle`."""
        self._lent, self._settled = True, False
        return Loan(os.getpid(), self._descriptor, self._size, self._token)

    def settle(self) -> None:
        """Note that everybody who wants the memory has it. Until then it is not written to again: somebody
        may be about to borrow it.
        """
        self._settled = True

    def writable(self) -> bool:
        """Return whether this rank owns the memory and nobody borrows it."""
        if not self.owned:
            return False
        if self._lent and self._settled:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            except OSError:
                return False
            self._lent = False
        return not self._lent


def _let_go(descriptor: int, pid: int) -> None:
    if os.getpid() != pid:
        return  # forked off: the lock is not its own, and the number may be that of another file by now
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a process was forked off
    os.close(descriptor)
