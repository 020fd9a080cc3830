"""``hvd.Compression`` for PyTorch."""

from __future__ import annotations

import torch

from horovod.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Reduce floating tensors as float16."""

    @staticmethod
    def is_floating(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point

    @staticmethod
    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.float16)

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class Compression:
    """Compressors to pass as ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
