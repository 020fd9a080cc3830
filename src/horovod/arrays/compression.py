"""``hvd.Compression`` for arrays."""

from __future__ import annotations

from typing import Any

from horovod.gradients.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Reduce floating arrays, which have a method ``astype``, as float16. Values beyond 65504 become
    infinite."""

    travels_as = "float16"

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return "float" in str(dtype)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class Compression:
    """Compressors to pass as ``compression=``; derive your own from ``Compressor``."""

    none = NoneCompressor
    fp16 = FP16Compressor
