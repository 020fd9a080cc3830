"""Python objects as bytes on their way to the processes of a job: calls, arguments, results.

    magic 8 bytes · number of parts u32 · bytes of each part u64 · padding · part · padding · part ...

The first part is a pickle (cloudpickle, protocol 5); the others are the large buffers in it: arrays, tensors.
They are not copied when the object is made again from writable memory: a private mapping gives every process
its own copy of just the pages that it writes.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Sequence
from typing import Any, cast

import cloudpickle

from horovod.errors import LaunchError

__all__ = ["pack", "unpack"]

_MAGIC = b"rueda\x00\x05\x01"
_HEAD = struct.Struct("<8sI")
_ALIGNMENT = 64
_LARGE_BYTES = 16 << 10


def pack(value: Any) -> list[memoryview]:
    """The bytes of ``value``, as pieces to be written one after another. Large buffers are not copied.

    Raises:
        Exception: that of the object that cannot be pickled.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE_BYTES:
            return True  # in the pickle itself
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=keep).dump(value)
    parts = [stream.getbuffer(), *buffers]
    head = _HEAD.pack(_MAGIC, len(parts)) + struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
    pieces = []
    at = 0
    for part in (memoryview(head), *parts):
        padding = -at % _ALIGNMENT
        if padding:
            pieces.append(memoryview(bytes(padding)))
        pieces.append(part)
        at += padding + part.nbytes
    return pieces


def unpack(data: memoryview) -> Any:
    """The object that :func:`pack` made ``data`` of. Its large buffers are views of ``data``.

    Raises:
        LaunchError: these are not the bytes of such an object.
        Exception: that of an object that cannot be made again.
    """
    wrong = LaunchError("What arrived is not what was sent: do all processes run the same version of Rueda?")
    if data.nbytes < _HEAD.size:
        raise wrong
    magic, count = _HEAD.unpack_from(data)
    end = _HEAD.size + 8 * count
    if magic != _MAGIC or count < 1 or end > data.nbytes:
        raise wrong
    sizes: Sequence[int] = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
    parts = []
    for size in sizes:
        begin = end + -end % _ALIGNMENT
        end = begin + size
        if end > data.nbytes:
            raise wrong
        parts.append(data[begin:end])
    return pickle.loads(parts[0], buffers=parts[1:])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also hands over the memory of PyTorch's tensors as it is, where they are plain."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter) and _plain(obj, torch):
            raw = obj.detach().view(-1).view(torch.uint8).numpy()
            dtype = str(obj.dtype).removeprefix("torch.")
            parameter = type(obj) is torch.nn.Parameter
            return _tensor, (
                pickle.PickleBuffer(raw), dtype, tuple(obj.shape), obj.requires_grad, parameter,
            )  # fmt: skip
        return super().reducer_override(obj)


def _plain(tensor: Any, torch: Any) -> bool:
    """Large, in host memory, contiguous, and nothing but its numbers: others take PyTorch's own way."""
    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() * tensor.element_size() >= _LARGE_BYTES
        and tensor.is_contiguous()
        and tensor.is_leaf
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, parameter: bool) -> Any:
    import torch

    memory = memoryview(buffer)
    if memory.readonly:
        memory = memoryview(bytearray(memory))
    tensor: Any = torch.frombuffer(memory, dtype=cast(Any, getattr(torch, dtype))).view(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
