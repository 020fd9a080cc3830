"""``hvd.Compression`` for PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from horovod.gradients.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _FloatCompressor(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return isinstance(dtype, torch.dtype) and dtype.is_floating_point

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_FloatCompressor):
    """Reduce floating tensors as float16. Values beyond 65504 become infinite: see ``bf16``."""

    travels_as = torch.float16


class BF16Compressor(_FloatCompressor):
    """Reduce floating tensors as bfloat16: the range of float32 with 8 significant bits."""

    travels_as = torch.bfloat16


class Compression:
    """Compressors to pass as ``compression=``; derive your own from ``Compressor``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
