"""Values as bytes that nothing has to be believed of: results on their way home from other hosts.

    magic 8 bytes · bytes of the text u64 · text · buffer · buffer ...

The text is JSON and says where in the buffers what lies, one after the other, so that nothing is made twice
of the same bytes. Reading it makes numbers, texts, lists and arrays and nothing else, whatever it says: a
pickle would run any code of whoever wrote it.
"""

from __future__ import annotations

import builtins
import json
import re
import struct
from typing import Any

import numpy as np

from horovod.errors import LaunchError
from horovod.runtime.ending import harmless, text_of

__all__ = ["NotPlain", "is_plain", "pack_plain", "plain_error", "unpack_plain", "unpack_error"]

_MAGIC = b"faran\x00\x05\x02"
_HEAD = struct.Struct("<8sQ")
_KINDS = "biufcSUmM"
_DTYPE = re.compile(r"[<>|=][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-zμ]{1,2}\])?")
_MOST_TEXT_BYTES = 64 << 20
"""Of what is no buffer. Lists of more than a million numbers are meant to be arrays."""
_MOST_WORDS_CHARACTERS = 10_000
_FAULTS = (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error, RecursionError)
_MOST_DIMENSIONS = 64
_SMALL = 1 << 53


class NotPlain(Exception):
    """Raised for a value that needs a pickle; the argument is its type."""


def is_plain(data: memoryview) -> bool:
    """True if ``pack_plain`` made these bytes."""
    return bytes(data[: len(_MAGIC)]) == _MAGIC


def pack_plain(value: Any) -> list[memoryview]:
    """The bytes of None, truth values, numbers, texts, bytes, NumPy arrays and scalars, and lists, tuples and
    dicts of those.

    Raises:
        NotPlain: there is something else in it.
    """
    buffers = _Buffers()
    try:
        text = json.dumps(_say(value, buffers)).encode()
    except RecursionError as error:
        raise NotPlain("a value that is nested too deeply") from error
    if len(text) > _MOST_TEXT_BYTES:
        raise NotPlain("a value of so many parts (make it an array)")
    return [memoryview(_HEAD.pack(_MAGIC, len(text)) + text), *buffers.pieces]


def unpack_plain(data: memoryview) -> Any:
    """Recover the value that ``pack_plain`` was given. Arrays are views of ``data``.

    Raises:
        LaunchError: these are not such bytes.
    """
    try:
        _, size = _HEAD.unpack_from(data)
        text, buffers = data[_HEAD.size : _HEAD.size + size], data[_HEAD.size + size :]
        if len(text) != size or size > _MOST_TEXT_BYTES:
            raise ValueError("it ends early, or is too long")
        return _hear(json.loads(bytes(text)), _Heard(buffers))
    except _FAULTS as error:
        raise LaunchError(f"What a rank sent home makes no sense: {harmless(str(error))[:200]}.") from error


def plain_error(error: BaseException) -> tuple[str, Any]:
    """The name of an exception's class and its arguments, as far as they are plain."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        pack_plain(error.args)
    except NotPlain:
        return name, (text_of(error),)
    return name, error.args


def unpack_error(name: Any, arguments: Any) -> BaseException:
    """An exception of Python's own, made again; of another one its name and its words. A terminal that shows
    it obeys nothing in it.
    """
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    words = tuple(_shown(each) for each in (arguments if isinstance(arguments, tuple) else (arguments,)))
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(*words)
        except (TypeError, ValueError, OverflowError):
            pass  # some want arguments of their own
    try:
        said = f"{name}: {', '.join(map(str, words))}"
    except ValueError as error:  # a number of too many digits
        said = f"{name} with arguments that cannot be shown: {error}"
    return LaunchError(harmless(said, "\n\t")[:_MOST_WORDS_CHARACTERS])


def _shown(word: Any) -> Any:
    return harmless(word, "\n\t") if isinstance(word, str) else word


def _say(value: Any, buffers: _Buffers) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind in (list, tuple):
        return {kind.__name__: [_say(each, buffers) for each in value]}
    if kind is dict:
        return {"dict": [[_say(key, buffers), _say(each, buffers)] for key, each in value.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: buffers.put(memoryview(value))}
    if kind is np.ndarray and value.dtype.kind in _KINDS:
        return {"array": [value.dtype.str, list(value.shape), buffers.put(_bytes_of(value))]}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS and kind is value.dtype.type:
        return {"scalar": [value.dtype.str, buffers.put(_bytes_of(np.asarray(value)))]}
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class _Buffers:
    """Buffers to be put after the text."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self._end = 0

    def put(self, data: memoryview) -> list[int]:
        """Add a buffer; returns its beginning and its size."""
        self.pieces.append(data.cast("B"))
        where = [self._end, data.nbytes]
        self._end += data.nbytes
        return where


class _Heard:
    """Buffers that follow the text, taken in order and without gaps."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, where: Any) -> memoryview:
        at, size = where
        if type(at) is not int or type(size) is not int or at != self._at:
            raise ValueError("a buffer is not where the one before it ends")
        if not 0 <= size <= len(self._data) - at:
            raise ValueError("it ends early")
        self._at += size
        return self._data[at : at + size]


def _hear(said: Any, buffers: _Heard) -> Any:
    if not isinstance(said, dict):
        if isinstance(said, list):
            raise ValueError("a list without a name")
        return said
    ((kind, what),) = said.items()
    match kind:
        case "int":
            return int(what, 16)
        case "float":
            return float.fromhex(what)
        case "complex":
            return complex(*map(float.fromhex, what))
        case "list":
            return [_hear(each, buffers) for each in what]
        case "tuple":
            return tuple(_hear(each, buffers) for each in what)
        case "dict":
            return {_hear(key, buffers): _hear(each, buffers) for key, each in what}
        case "bytes":
            return bytes(buffers.take(what))
        case "bytearray":
            return bytearray(buffers.take(what))
        case "array":
            return _array(what[0], what[1], buffers.take(what[2]))
        case "scalar":
            return _array(what[0], [1], buffers.take(what[1]))[0]
    raise ValueError(f"{kind!r} is not known")


def _array(name: Any, shape: Any, data: memoryview) -> np.ndarray[Any, Any]:
    if not isinstance(name, str) or not _DTYPE.fullmatch(name) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"an array of {name!r:.100}")
    dtype = np.dtype(name)
    return np.frombuffer(data, np.uint8).view(dtype).reshape([int(each) for each in shape])
