"""Compression of tensors for the time of a reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod.errors import InvalidArgumentError

__all__ = ["CastCompressor", "Compressor", "NoneCompressor", "checked_compressor", "reduce_compressed"]


class Compressor:
    """Two functions around a reduction; the base of compressors of your own.

    Users pass the class itself, or any object with the same two methods. The compressed tensors of all ranks
    are reduced like any others: they must have one shape and dtype everywhere, and what is done to them must
    make sense for a sum.

    A compressor that remembers something from step to step (such as the error it made) needs to know which
    tensor it is given. ``DistributedOptimizer`` asks one that has a method ``for_tensor(name)`` once for each
    parameter, and uses what that returns for this parameter.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to reduce, and what :meth:`decompress` needs to know. ``tensor`` itself must
        keep its values."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undo :meth:`compress` on the reduced tensor."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """No compression."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Reduce floating tensors in another type. A framework folder says how to cast, and to what."""

    travels_as: Any
    """The dtype of the compressed tensors."""

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        dtype = getattr(tensor, "dtype", None)  # what is no tensor is refused later
        return (cls.cast(tensor, cls.travels_as) if cls.is_floating(dtype) else tensor), dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return cls.cast(tensor, ctx) if cls.is_floating(ctx) else tensor


def checked_compressor(compression: Any) -> Any:
    """``compression``, if it can compress.

    Raises:
        ValueError: it cannot; with what to write.
    """
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise InvalidArgumentError(
            f"compression={compression!r} does not compress. Write compression=hvd.Compression.fp16 (or "
            "bf16, or none), or pass a class of your own with the methods compress and decompress."
        )
    return compression


def reduce_compressed(
    compression: Any, tensors: Sequence[Any], reduce: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """Let ``reduce`` have what ``compression`` makes of ``tensors``, and decompress its results, unless they
    are ``None``."""
    checked_compressor(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = reduce([tensor for tensor, _ in pairs])
    return [
        None if tensor is None else compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]
