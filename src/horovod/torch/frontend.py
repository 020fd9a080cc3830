"""PyTorch tensors as the core sees them. No compiled extension: a pointer, a shape and a dtype are enough."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.utils import dlpack

from horovod import _core
from horovod.collectives.base import current_engine
from horovod.collectives.frontend import Description
from horovod.errors import HorovodError, HorovodInternalError, InvalidArgumentError

__all__ = ["TorchFrontend", "not_a_tensor", "shared_like"]

_CODES: Final[dict[torch.dtype, int]] = {
    torch.uint8: _core.UINT8,
    torch.int8: _core.INT8,
    torch.int16: _core.INT16,
    torch.int32: _core.INT32,
    torch.int64: _core.INT64,
    torch.float16: _core.FLOAT16,
    torch.bfloat16: _core.BFLOAT16,
    torch.float32: _core.FLOAT32,
    torch.float64: _core.FLOAT64,
    torch.bool: _core.BOOL,
}
# What older versions of PyTorch may lack. Types beyond BOOL are only moved; the core refuses to reduce them.
for _name in (
    *("uint16", "uint32", "uint64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
):
    if hasattr(torch, _name):
        _CODES[getattr(torch, _name)] = getattr(_core, _name.upper())

_DTYPES: Final = {code: dtype for dtype, code in _CODES.items()}
_DEVICES: Final[dict[str, int]] = {"cuda": _core.CUDA, "xpu": _core.XPU, "mps": _core.MPS}

# PyTorch gives memory of such tensors back to the system, and fresh pages cost more than the exchange.
_POOLED_ELEMENTS: Final = 2 << 20
_BOOL: Final[int] = _core.BOOL
_ONE_ELEMENT: Final = torch.Size((1,))
_NO_COUNTS: Final = torch.empty(0, dtype=torch.int32, device="cpu")


# The public function looks for other things than capsules first, which takes a fifth longer.
_from_capsule: Final = getattr(torch._C, "_from_dlpack", dlpack.from_dlpack)


def _pooled(code: int, shape: Sequence[int]) -> torch.Tensor:
    return _imported(current_engine().empty(code, tuple(shape)), _DTYPES[code])


def _imported(capsule: object, dtype: torch.dtype) -> torch.Tensor:
    """Memory of the engine as a tensor. It exports types of 8 bits that DLPack was late to know as bytes."""
    made: torch.Tensor = _from_capsule(capsule)
    return made if made.dtype == dtype else made.view(dtype)


def _taken(capsule: object, like: torch.Tensor) -> torch.Tensor:
    return _imported(capsule, like.dtype)


def _pooled_code(like: torch.Tensor) -> int | None:
    """Code of the dtype, if a tensor like this one can come from the pool."""
    return _CODES.get(like.dtype) if like.is_cpu and like.is_contiguous() else None


def current_stream(device: int) -> int:
    """The current stream of a CUDA device, as its driver knows it."""
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


if hasattr(torch._C, "_cuda_getCurrentRawStream"):  # where PyTorch was built for CUDA; it makes no object
    current_stream = torch._C._cuda_getCurrentRawStream


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Code of its device, its number, and the stream in whose order ``tensor`` is used."""
    device = tensor.device
    index = device.index or 0
    code = _DEVICES[device.type]
    return code, index, current_stream(index) if code == _core.CUDA else 0


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a complex tensor has other values than lie in its memory."""
    return tensor.is_conj() or tensor.is_neg()


def shared_like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor with the shape and dtype of ``tensor``, in memory that all ranks of this host reach. Its
    content is unspecified.

    Args:
        tensor: contiguous, in host memory.

    Raises:
        MemoryError: there is no such memory, or no rank to share it with.
    """
    capsule = current_engine().empty(_CODES[tensor.dtype], tuple(tensor.shape), shared=True)
    return _imported(capsule, tensor.dtype)


def _is_dense(tensor: torch.Tensor, shape: torch.Size) -> bool:
    """Return whether the values lie one after another, each as it is. Sparse tensors are not contiguous."""
    # In memory of a tensor with the negative bit lie the values with the other sign. It is the imaginary part
    # of a conjugate, and contiguous only if it has one element. One element always is; one without an address
    # (sparse) raises.
    if shape and shape[0] != 1:
        return tensor.is_contiguous()
    return not tensor.is_neg() and (shape == _ONE_ELEMENT or tensor.is_contiguous())


def _peek(tensor: torch.Tensor) -> Description | None:
    shape = tensor.shape
    if _is_dense(tensor, shape):
        code = _CODES.get(tensor.dtype)
        if code is not None and (code <= _BOOL or not _is_lazy(tensor)) and (tensor.is_cpu or tensor.is_cuda):
            address = tensor.data_ptr()
            if address or not tensor.numel():
                place = () if tensor.is_cpu else _place(tensor)
                return address, address, code, shape, *place
    return None


def _describe(tensor: torch.Tensor, out: int | None = None) -> Description:
    try:
        shape = tensor.shape
        if _is_dense(tensor, shape):
            address = tensor.data_ptr()
            code = _CODES[tensor.dtype]
            if (address or not tensor.numel()) and (code <= _BOOL or not _is_lazy(tensor)):
                place = () if tensor.is_cpu else _place(tensor)
                return address, address if out is None else out, code, shape, *place
    except (AttributeError, KeyError, RuntimeError):
        pass  # `_refusal` says what is wrong
    raise _refusal(tensor)


_ORDINARY: Final = {dtype: code for dtype, code in _CODES.items() if code <= _BOOL}
_CLASSES: Final = (torch.Tensor, torch.nn.Parameter)
_EXCHANGE: Final[object] = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
"""PyTorch's functions that describe and make tensors of these classes, since 2.10."""


def _describer(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    return _core.HostDescriber(_ORDINARY, otherwise, _CLASSES, _EXCHANGE).describe


class TorchFrontend:
    """Implements :class:`horovod.collectives.frontend.Frontend` for ``torch.Tensor``."""

    def __init__(self) -> None:
        # Only what is no ordinary tensor in host memory comes to `_peek` and `_describe`.
        self.peek: Callable[[torch.Tensor], Description | None]
        self.peek = _describer(_peek)
        self.describe: Callable[..., Description]
        self.describe = _describer(_describe)
        # Only what PyTorch's table makes no tensor of comes to `_taken`.
        self.from_dlpack: Callable[[object, torch.Tensor], torch.Tensor]
        self.from_dlpack = _core.HostImporter(_taken, _EXCHANGE).take

    def address(self, out: torch.Tensor) -> int:
        try:
            address: int = out.data_ptr()
            if address or not out.numel():
                return address
        except (AttributeError, RuntimeError):
            pass
        raise _refusal(out)

    def compute_threads(self) -> int:
        return torch.get_num_threads()

    def dtype_name(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() >= _POOLED_ELEMENTS and (code := _pooled_code(tensor)) is not None:
            return _pooled(code, tensor.shape)
        # Keeps the strides: only contiguous tensors get here. Options would double the time.
        return torch.empty_like(tensor)

    def empty_rows(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        shape = like.shape
        if like.numel() >= _POOLED_ELEMENTS and (code := _pooled_code(like)) is not None:
            return _pooled(code, (rows, *shape[1:]))
        if like.__class__ is not torch.Tensor:  # one of another class would make what it likes
            return torch.empty((rows, *shape[1:]), dtype=like.dtype, device=like.device)
        # Extents one by one: a tuple of them, or a dtype and a device, would double the time.
        return like.new_empty(rows) if len(shape) == 1 else like.new_empty(rows, *shape[1:])

    def empty_counts(self, count: int) -> torch.Tensor:
        return _NO_COUNTS.new_empty(count)

    def contiguous_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def from_device(self, result: _core.DeviceResult, like: torch.Tensor) -> torch.Tensor:
        device = torch.device("cuda", result.device_index)
        made = torch.empty(result.shape, dtype=_DTYPES[result.dtype], device=device)
        result.deliver(made.data_ptr(), current_stream(result.device_index))
        return made

    def current_stream(self, device: int) -> int:
        return current_stream(device)

    def from_bytes(self, data: bytearray) -> torch.Tensor:
        return torch.frombuffer(data, dtype=torch.uint8)

    def to_bytes(self, tensor: torch.Tensor) -> bytes:
        return ctypes.string_at(tensor.data_ptr(), tensor.numel())

    def from_integers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device="cpu")

    def to_integers(self, tensor: torch.Tensor) -> list[int]:
        integers: list[int] = tensor.tolist()
        return integers


def not_a_tensor(value: Any) -> str:
    """Message for a ``value`` that should be a tensor."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}."
    remedy = {
        "numpy.ndarray": " Pass torch.from_numpy(array); the result has numpy().",
        "list": " Pass torch.tensor(values).",
        "float": " Pass torch.tensor(value).",
        "int": " Pass torch.tensor(value).",
    }.get(module + kind.__name__, "")
    return f"Expected a torch.Tensor, got {module}{kind.__name__}.{remedy}"


def _refusal(tensor: Any) -> HorovodError:
    """Error that says why ``describe`` cannot describe ``tensor``."""
    if not isinstance(tensor, torch.Tensor):
        return InvalidArgumentError(not_a_tensor(tensor))
    if tensor.layout != torch.strided:
        return InvalidArgumentError(
            f"Tensor type {tensor.type() if tensor.layout == torch.sparse_coo else tensor.layout} is not "
            "supported. Use sparse_allreduce_async for sparse tensors, or to_dense()."
        )
    if tensor.dtype not in _CODES:
        return InvalidArgumentError(f"Tensor type {tensor.dtype} is not supported.")
    if tensor.is_meta:
        return InvalidArgumentError(
            f"Tensor of shape {list(tensor.shape)} is on device meta: it has no values. Give it some first, "
            "for example by module.to_empty(device='cpu') and an initialisation."
        )
    if not tensor.is_cpu and tensor.device.type not in _DEVICES:
        return HorovodInternalError(
            f"Tensors on device {tensor.device} are not supported yet; move the tensor to the CPU first.",
            recoverable=False,
        )
    if not tensor.is_contiguous():
        return InvalidArgumentError(
            f"Tensor is required to be contiguous, but has shape {list(tensor.shape)} and strides "
            f"{list(tensor.stride())}. Pass tensor.contiguous()."
        )
    if tensor.is_conj():
        return InvalidArgumentError(
            "Tensor is the conjugate of what lies in its memory. Pass tensor.resolve_conj()."
        )
    if tensor.is_neg():
        return InvalidArgumentError(
            "Tensor negates what lies in its memory (tensor.is_neg()). Pass tensor.resolve_neg()."
        )
    return InvalidArgumentError(
        "Tensor has no memory of its own (a fake, functional or zero tensor?). Pass tensor.clone()."
    )
