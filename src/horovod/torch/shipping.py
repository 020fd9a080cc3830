"""Sending tensors to other processes without a copy of their memory in the pickle."""

from __future__ import annotations

import pickle
from typing import Any

import torch

__all__ = ["reduce_memory"]


def reduce_memory(obj: Any, least_bytes: int) -> tuple[Any, ...] | None:
    """Tell pickle how to make ``obj`` again around its memory; None: PyTorch pickles it.

    Only plain contiguous tensors and parameters in host memory, of ``least_bytes`` or more, go this way.
    """
    if type(obj) not in (torch.Tensor, torch.nn.Parameter) or not _plain(obj, least_bytes):
        return None
    memory = pickle.PickleBuffer(obj.detach().view(-1).view(torch.uint8).numpy())
    parameter = type(obj) is torch.nn.Parameter
    dtype = str(obj.dtype).removeprefix("torch.")
    return _around, (memory, dtype, tuple(obj.shape), obj.requires_grad, parameter)


def _plain(tensor: torch.Tensor, least_bytes: int) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() * tensor.element_size() >= least_bytes
        and tensor.is_contiguous()
        and tensor.is_leaf
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _around(
    buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, parameter: bool
) -> torch.Tensor:
    memory = memoryview(buffer)
    if memory.readonly:
        memory = memoryview(bytearray(memory))
    kind: torch.dtype = getattr(torch, dtype)
    tensor = torch.frombuffer(memory, dtype=kind).view(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
