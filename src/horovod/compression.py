"""Compression of tensors for the time of a reduction."""

from __future__ import annotations

from typing import Any

__all__ = ["CastCompressor", "Compressor", "NoneCompressor"]


class Compressor:
    """Two functions around a reduction. Users pass the class itself, or any object with the same two
    methods."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to reduce, and what :meth:`decompress` needs to know."""
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

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        raise NotImplementedError

    @staticmethod
    def narrow(tensor: Any) -> Any:
        """``tensor`` in the type that travels."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        dtype = tensor.dtype
        return (cls.narrow(tensor) if cls.is_floating(dtype) else tensor), dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return cls.cast(tensor, ctx) if cls.is_floating(ctx) else tensor
