"""Python objects as bytes on their way to the processes of a job: calls, arguments, results.

    magic 8 bytes · number of parts u32 · bytes of each part u64 · padding · part · padding · part ...

The first part is a pickle (cloudpickle, protocol 5); the others are the large buffers in it: arrays, tensors.
They are not copied when the object is made again from writable memory: a private mapping gives every process
its own copy of just the pages that it writes. Of a call that cannot be pickled the part is found that is why.
"""

from __future__ import annotations

import importlib
import io
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from horovod.errors import LaunchError

__all__ = ["ALIGNMENT", "LARGE_BYTES", "pack", "unpack", "why_unpicklable", "why_value_unpicklable"]

_MAGIC = b"faran\x00\x05\x01"
_HEAD = struct.Struct("<8sI")
ALIGNMENT = 64
LARGE_BYTES = 16 << 10
"""Smaller buffers are part of the pickle."""
_MOST_DEEP = 5

# By the package of a type: a module with `reduce_memory(obj, least_bytes)`, which tells pickle how to make
# the object again around its memory, or None where that is not possible.
_REDUCERS = {"torch": "horovod.torch.shipping"}


def pack(value: Any) -> list[memoryview]:
    """The bytes of ``value``, as pieces to be written one after another. Large buffers are not copied.

    Raises:
        Exception: that of the object that cannot be pickled.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
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
        padding = -at % ALIGNMENT
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
    wrong = LaunchError(
        "What arrived is not what was sent: do all processes run the same version of Farandole?"
    )
    if data.nbytes < _HEAD.size:
        raise wrong
    magic, count = _HEAD.unpack_from(data)
    end = _HEAD.size + 8 * count
    if magic != _MAGIC or count < 1 or end > data.nbytes:
        raise wrong
    sizes: Sequence[int] = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
    parts = []
    for size in sizes:
        begin = end + -end % ALIGNMENT
        end = begin + size
        if end > data.nbytes:
            raise wrong
        parts.append(data[begin:end])
    return pickle.loads(parts[0], buffers=parts[1:])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that hands over the memory of tensors as it is, where the framework's folder knows how."""

    def reducer_override(self, obj: Any) -> Any:
        module = _REDUCERS.get(type(obj).__module__.partition(".")[0])
        if module is not None:
            reduced = importlib.import_module(module).reduce_memory(obj, LARGE_BYTES)
            if reduced is not None:
                return reduced
        return super().reducer_override(obj)


def why_unpicklable(
    func: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any], error: Exception
) -> str:
    """A sentence that names the object, by the way from the call to it. ``error``: of pickling the call."""
    whole = [("the function", func), *_arguments(args, kwargs)]
    for name, value in whole:
        if not _goes(value):
            return (
                f"{_which(name, value, error)} "
                "Make it inside of the function, or leave it out of what the function uses."
            )
    return f"The call cannot be pickled. {type(error).__name__}: {error}"


def why_value_unpicklable(name: str, value: Any) -> str | None:
    """A sentence about one value that has a name, such as "parameter loss"; None: it can be pickled."""
    try:
        pack(value)
    except Exception as error:
        return _which(name, value, error)
    return None


def _which(name: str, value: Any, error: Exception) -> str:
    name, value = _deepest(name, value)
    return (
        f"{name} cannot be pickled, which is how it would reach the other processes: it is "
        f"{type(value).__module__}.{type(value).__qualname__}. {type(error).__name__}: {error}."
    )


def _deepest(name: str, value: Any) -> tuple[str, Any]:
    for _ in range(_MOST_DEEP):
        for part, below in _parts(value):
            if not _goes(below):
                name, value = f"{part} of {name}", below
                break
        else:
            break
    return name, value


def _arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(args):
        yield f"argument {number}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Parts of an object, each with a name."""
    function = getattr(value, "__func__", value)
    if hasattr(value, "__self__") and not isinstance(value.__self__, type(cloudpickle)):
        yield "the object", value.__self__
    code = getattr(function, "__code__", None)
    if code is not None:
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars, cells, strict=False):
            try:
                yield f"variable {name!r}", cell.cell_contents
            except ValueError:
                continue  # not set yet
        for name in code.co_names:
            if name in function.__globals__:
                yield f"global variable {name!r}", function.__globals__[name]
        for default in function.__defaults__ or ():
            yield "a default argument", default
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield f"item {key!r:.40}", each
    elif isinstance(value, (list, tuple, set)):
        for number, each in enumerate(value):
            yield f"item {number}", each
    else:
        for name, each in getattr(value, "__dict__", {}).items():
            yield f"attribute {name!r}", each


def _goes(value: Any) -> bool:
    try:
        pack(value)
    except Exception:
        return False
    return True
