"""The process manager's exchange of MPICH, Intel MPI and Flux: lines of text over the descriptor ``PMI_FD``.

    cmd=init pmi_version=1 pmi_subversion=1     cmd=response_to_init rc=0 ...
    cmd=get_my_kvsname                          cmd=my_kvsname rc=0 kvsname=K
    cmd=put kvsname=K key=farandole value=V     cmd=put_result rc=0
    cmd=barrier_in                              cmd=barrier_out, when all ranks are here
    cmd=get kvsname=K key=farandole             cmd=get_result rc=0 value=V
    cmd=finalize, when Python ends              cmd=finalize_ack

What one rank puts is only sure to be seen by others after the barrier. A process that ends without
``cmd=finalize`` has failed for MPICH's launcher: it kills the others of the job, with status 0 and without a
word. After it the server is gone for an MPI library, so one that has begun says it itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import socket
import stat
import time
from collections.abc import Mapping

from horovod.errors import RendezvousError

__all__ = ["exchange"]

_KEY = "farandole"
_VALUE_BYTES = 1023  # what MPICH's server takes
_MOST_LINE_BYTES = 1 << 16
_FAREWELL_S = 2.0
_MPI = re.compile(r"/libmpi[a-z]*\.so", re.ASCII)


def exchange(environ: Mapping[str, str], value: str, timeout_s: float) -> str:
    """Return on every rank the ``value`` that rank 0 gives; the others give the empty text. Every rank must
    call this.

    Raises:
        RendezvousError: not all ranks came in time, or the server does not play along.
    """
    assert len(value) <= _VALUE_BYTES
    deadline = time.monotonic() + timeout_s
    # The descriptor stays open: it belongs to the process, and is the launcher's sign of life.
    with socket.socket(fileno=_duplicate(environ["PMI_FD"])) as server:
        talk = _Talk(server, deadline, timeout_s)
        talk.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        space = talk.ask("cmd=get_my_kvsname", "my_kvsname", "kvsname")
        if value:
            talk.ask(f"cmd=put kvsname={space} key={_KEY} value={value}", "put_result")
        talk.ask("cmd=barrier_in", "barrier_out")
        card = talk.ask(f"cmd=get kvsname={space} key={_KEY}", "get_result", "value")
        # Not before: if one fails half-way the others wait for it in vain, and the launcher ends them.
        atexit.unregister(_part)  # of a world before
        atexit.register(_part, os.getpid(), int(environ["PMI_FD"]), os.fstat(server.fileno()).st_ino)
        return card


def _part(pid: int, descriptor: int, inode: int) -> None:
    """Tell the server, through this socket, that the process ends in order. Also one whose script fails does:
    the others hear from its engine what has happened, and are to say so before they end."""
    # A forked child is no rank, and the script may have closed or given away the descriptor.
    with contextlib.suppress(OSError, RendezvousError):
        if os.getpid() != pid or os.fstat(descriptor).st_ino != inode or _mpi_speaks():
            return
        with socket.socket(fileno=_duplicate(str(descriptor))) as server:
            talk = _Talk(server, time.monotonic() + _FAREWELL_S, _FAREWELL_S)
            talk.ask("cmd=finalize", "finalize_ack")


def _mpi_speaks() -> bool:
    """Return whether an MPI library has started in this process: it says farewell to the server itself."""
    with open("/proc/self/maps") as maps:
        libraries = {line.split(maxsplit=5)[5].strip() for line in maps if _MPI.search(line)}
    begun = ctypes.c_int(0)
    for library in libraries:
        with contextlib.suppress(AttributeError):
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            loaded.MPI_Initialized(ctypes.byref(begun))
    return begun.value != 0


class _Talk:
    def __init__(self, server: socket.socket, deadline: float, timeout_s: float) -> None:
        self._server = server
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._received = b""

    def ask(self, request: str, answer: str, wanted: str = "cmd") -> str:
        """The word ``wanted`` of the answer, which must be of the kind ``answer``."""
        try:
            self._server.settimeout(max(0.001, self._deadline - time.monotonic()))
            self._server.sendall(request.encode() + b"\n")
            while b"\n" not in self._received:
                self._server.settimeout(max(0.001, self._deadline - time.monotonic()))
                data = self._server.recv(4096)
                if not data:
                    raise RendezvousError("The launcher closed the connection named by PMI_FD.")
                self._received += data
                if len(self._received) > _MOST_LINE_BYTES:
                    raise RendezvousError("The launcher's exchange (PMI) sends a line without an end.")
        except TimeoutError as error:
            raise RendezvousError(
                f"Not all ranks called hvd.init() within {self._timeout_s:g} s: the launcher's exchange "
                "(PMI) waits for them. Look for an error in the output of a rank; if some are only slow to "
                "start, raise HOROVOD_START_TIMEOUT (seconds).",
                waited_s=self._timeout_s,
            ) from error
        except OSError as error:
            raise RendezvousError(f"The launcher's exchange (PMI_FD) failed: {error}") from error
        line, _, self._received = self._received.partition(b"\n")
        words = dict(
            word.partition("=")[::2] for word in line.decode(errors="replace").split() if "=" in word
        )
        if words.get("cmd") != answer or words.get("rc", "0") != "0" or wanted not in words:
            raise RendezvousError(f"The launcher's exchange (PMI) answered {request!r} with {line!r}.")
        return words[wanted]


def _duplicate(number: str) -> int:
    try:
        copy = os.dup(int(number))
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            raise ValueError("not a socket")
        return copy
    except (ValueError, OverflowError, OSError) as error:
        raise RendezvousError(
            f"PMI_FD={number} is not open in this process: was it started by another process than the "
            "launcher, which closed it? Set HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT."
        ) from error
