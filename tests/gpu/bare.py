"""NCCL without anything around it, by its C functions: what ours is measured beside."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.gpu import place

from horovod.devices.nccl import find_nccl

__all__ = ["BareNccl"]

_FLOAT, _SUM = 7, 0


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class BareNccl:
    """A communicator over all ranks. ``exchange``: gives every rank the object of rank 0."""

    def __init__(self, rank: int, size: int, exchange: Any) -> None:
        self._library = ctypes.CDLL(find_nccl().file)
        made = _Id()
        if rank == 0:
            self._check("ncclGetUniqueId", ctypes.byref(made))
        ctypes.memmove(ctypes.byref(made), exchange(bytes(ctypes.string_at(ctypes.byref(made), 128))), 128)
        self._communicator = ctypes.c_void_p()
        place.memory_in_use()  # the context is entered
        self._check("ncclCommInitRank", ctypes.byref(self._communicator), size, made, rank)

    def allreduce(self, send: Any, receive: Any, stream: Any) -> None:
        """Sum float32 tensors, on ``stream``."""
        self._check(
            "ncclAllReduce",
            ctypes.c_void_p(send.data_ptr()),
            ctypes.c_void_p(receive.data_ptr()),
            ctypes.c_size_t(send.numel()),
            _FLOAT,
            _SUM,
            self._communicator,
            place.raw(stream),
        )

    def close(self) -> None:
        self._check("ncclCommDestroy", self._communicator)

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        assert status == 0, f"{function} answers {status}"
