"""Tensors of a CUDA device for a PyTorch that was not built for CUDA.

``install()`` makes ``device="cuda"`` work in this process. Memory and streams are those of the driver in
``tests/fakes/cuda``: the host cannot read what a tensor holds, operations run late and on the thread of the
current stream, in the order of events only. Freed memory is used again in the order of its own stream, as by
PyTorch's allocator: who still needs it on another one, without a wait, finds a pattern in it.

Operators compute on the host. Their shapes come from PyTorch's meta device; one that has none there, or
whose shape depends on values, waits for the stream first, as it would on a device. Autograd is PyTorch's
own, with a thread for each device, whose current stream is that of the forward pass.

Not there: sparse and complex views, ``tensor.data = other``, ``torch.cuda`` beyond what is set here.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from tests.fakes.torch import GUARD as _guard
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["Stream", "current_stream", "driver", "handle", "install", "stream", "synchronize"]

_CALL: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NOT_READY: Final = 600

driver: ctypes.CDLL
"""The driver, with the functions of ``fake_cuda.h``."""
# -- streams ------------------------------------------------------------------------------------------------


def current_stream(device: int) -> int:
    """The stream of ``device`` into which this thread puts work; 0: the default one."""
    found: int = _guard.standInStream(device)
    return found


class Stream:
    """A stream that does not wait for the default one."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        made = ctypes.c_void_p()
        _guard.standInEnter(device)
        _check("cuStreamCreate", ctypes.byref(made), 1)
        self.handle = int(made.value or 0)

    def synchronize(self) -> None:
        """Wait on the host until all that is in the stream has been done."""
        _guard.standInEnter(self.device)
        _check("cuStreamSynchronize", ctypes.c_void_p(self.handle))

    def idle(self) -> bool:
        """Whether all that is in the stream has been done."""
        _guard.standInEnter(self.device)
        status: int = driver.cuStreamQuery(ctypes.c_void_p(self.handle))
        return status != _NOT_READY

    def wait_stream(self, other: int) -> None:
        """What is put into this stream from now on comes after what is in ``other``."""
        event = ctypes.c_void_p()
        _guard.standInEnter(self.device)
        _check("cuEventCreate", ctypes.byref(event), 2)
        _check("cuEventRecord", event, ctypes.c_void_p(other))
        _check("cuStreamWaitEvent", ctypes.c_void_p(self.handle), event, 0)
        _check("cuEventDestroy_v2", event)

    def hold(self) -> None:
        """Nothing of the stream starts until :meth:`release`."""
        _guard.standInEnter(self.device)
        driver.fakeCudaHold(ctypes.c_void_p(self.handle))

    def release(self) -> None:
        driver.fakeCudaRelease(ctypes.c_void_p(self.handle))


@contextmanager
def stream(chosen: Stream) -> Iterator[Stream]:
    """``chosen`` is the current stream of its device in this thread."""
    before = current_stream(chosen.device)
    _guard.standInUseStream(chosen.device, ctypes.c_int64(chosen.handle))
    try:
        yield chosen
    finally:
        _guard.standInUseStream(chosen.device, ctypes.c_int64(before))


def synchronize(device: int = 0) -> None:
    """Wait for all streams of ``device``."""
    _guard.standInEnter(device)
    _check("cuCtxSynchronize")


# -- memory -------------------------------------------------------------------------------------------------


class _Memory:
    """Memory of a device, given back in the order of the stream that was current when it was taken."""

    def __init__(self, device: int, count: int) -> None:
        self.device, self.stream, self.bytes = device, current_stream(device), count
        _guard.standInEnter(device)
        _reclaim()
        address = ctypes.c_ulonglong()
        _check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(count, 1)))
        self.address = address.value

    def __del__(self) -> None:
        _dropped.append((self.device, self.stream, self.address))


_dropped: Final[list[tuple[int, int, int]]] = []
_waiting: Final[list[tuple[int, int, ctypes.c_void_p]]] = []
_allocator: Final = threading.Lock()


def _reclaim() -> None:
    """Free what nobody has any more, as soon as its stream has come to this point."""
    with _allocator:
        entered = _guard.standInEnter
        while _dropped:
            device, used, address = _dropped.pop()
            event = ctypes.c_void_p()
            entered(device)
            _check("cuEventCreate", ctypes.byref(event), 2)
            _check("cuEventRecord", event, ctypes.c_void_p(used))
            _waiting.append((device, address, event))
        left = []
        for device, address, event in _waiting:
            entered(device)
            if driver.cuEventQuery(event) == _NOT_READY:
                left.append((device, address, event))
                continue
            _check("cuEventDestroy_v2", event)
            _check("cuMemFree_v2", ctypes.c_ulonglong(address))
        _waiting[:] = left


def _host_storage(address: int, count: int) -> torch.UntypedStorage:
    """Where the host may reach memory of a device. What is there is known only in the order of a stream."""
    if not count:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    host = driver.fakeCudaHostAddress(ctypes.c_ulonglong(address))
    assert host, "memory of a device that is not there any more"
    return torch.frombuffer((ctypes.c_char * count).from_address(host), dtype=torch.uint8).untyped_storage()


class _Layout:
    """What a kernel knows of a tensor: no reference keeps the memory for it."""

    def __init__(self, tensor: DeviceTensor) -> None:
        memory, meta = tensor.memory, tensor.meta
        self._memory = memory.address, memory.bytes
        self._dtype, self._shape, self._strides = meta.dtype, meta.shape, meta.stride()
        self._offset = meta.storage_offset()

    def on_host(self) -> torch.Tensor:
        found = torch.empty(0, dtype=self._dtype, device="cpu")
        if 0 in self._shape:
            return torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device="cpu")
        return found.set_(_host_storage(*self._memory), self._offset, self._shape, self._strides)


# -- tensors ------------------------------------------------------------------------------------------------


class DeviceTensor(torch.Tensor):
    """A tensor whose content lies in memory of the driver."""

    meta: torch.Tensor
    memory: _Memory

    @staticmethod
    def __new__(cls, meta: torch.Tensor, memory: _Memory) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cuda", memory.device),
        )
        made.meta, made.memory = meta, memory
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        made = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made.requires_grad_(self.requires_grad)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _again, (self.detach().cpu(), self.memory.device, self.requires_grad)

    def data_ptr(self) -> int:
        if not self.numel():
            return 0
        return self.memory.address + int(self.meta.storage_offset()) * self.meta.element_size()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"on cuda:{self.memory.device}: {self.detach().cpu()!r}"

    def __format__(self, spec: str) -> str:
        return format(self.detach().cpu(), spec)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


def _again(values: torch.Tensor, device: int, requires_grad: bool) -> torch.Tensor:
    return values.to(torch.device("cuda", device)).requires_grad_(requires_grad)


def _new(meta: torch.Tensor, device: int) -> DeviceTensor:
    return DeviceTensor(meta, _Memory(device, meta.untyped_storage().nbytes()))


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
    wanted = kwargs.get("device")
    wanted = None if wanted is None else torch.device(wanted)
    if wanted is not None and wanted.type == "cuda" and wanted.index is not None:
        device = wanted.index
    else:
        device = given[0].memory.device
    targets = [arg for arg in args if isinstance(arg, torch.Tensor)][:1]
    to_host = (wanted is not None and wanted.type != "cuda") or (
        func._schema.is_mutable and targets and not isinstance(targets[0], DeviceTensor)
    )
    if not to_host and torch.Tag.nondeterministic_seeded not in func.tags and func not in _OTHER_TYPES:
        try:
            with torch._C._DisableTorchDispatch():
                made = func(*tree_map(_meta, args), **tree_map(_meta, _placed(kwargs, "meta")))
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
            pass  # it has no meta kernel, or it is wrong: then the host says so
        else:
            if all(map(_dense, tree_leaves(made))):
                return _queue(func, args, kwargs, given, made, device)
    for each in {tensor.memory.device for tensor in given}:
        _guard.standInEnter(each)
        _check("cuStreamSynchronize", ctypes.c_void_p(current_stream(each)))
    host: dict[int, DeviceTensor] = {}

    def on_host(leaf: Any) -> Any:
        if not isinstance(leaf, DeviceTensor):
            return leaf
        found = _Layout(leaf).on_host()
        host[id(found)] = leaf
        kept.append(found)
        return found

    kept: list[torch.Tensor] = []
    made = func(*tree_map(on_host, args), **tree_map(on_host, _placed(kwargs, "cpu")))

    def back(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in host:
            return host[id(leaf)]
        if to_host:
            return leaf
        return leaf.to(torch.device("cuda", device))

    return tree_map(back, made)


# What these keep for the backward pass has another type on the host than on the meta device.
_OTHER_TYPES: Final = {
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.native_batch_norm_backward.default,
}


def _dense(leaf: Any) -> bool:
    return not isinstance(leaf, torch.Tensor) or (leaf.is_meta and leaf.layout == torch.strided)


def _meta(leaf: Any) -> Any:
    if isinstance(leaf, DeviceTensor):
        return leaf.meta
    # A scalar on the host takes part in operations of a device.
    return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf


def _placed(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    placed = dict(kwargs)
    if placed.get("device") is not None:
        placed["device"] = torch.device(device)
    placed.pop("pin_memory", None)
    return placed


def _queue(
    func: Any, args: Any, kwargs: dict[str, Any], given: list[DeviceTensor], made: Any, device: int
) -> Any:
    """Put the operation into the current stream. ``made``: what it returns, on the meta device."""
    by_storage = {tensor.meta.untyped_storage()._cdata: tensor for tensor in given}
    by_meta = {id(tensor.meta): tensor for tensor in given}
    fresh: list[_Layout | None] = []

    def result(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in by_meta:
            fresh.append(None)
            return by_meta[id(leaf)]
        source = by_storage.get(leaf.untyped_storage()._cdata)
        if source is not None:
            fresh.append(None)
            return DeviceTensor(leaf, source.memory)
        out = _new(leaf, device)
        fresh.append(_Layout(out))
        return out

    results = tree_map(result, made)
    if not func._schema.is_mutable and not any(fresh):  # views, or no tensor at all
        return results

    def noted(leaf: Any) -> Any:
        if isinstance(leaf, DeviceTensor):
            return _Layout(leaf)
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    inputs = tree_map(noted, (args, _placed(kwargs, "cpu")))

    def kernel() -> None:
        def on_host(leaf: Any) -> Any:
            return leaf.on_host() if isinstance(leaf, _Layout) else leaf

        given_args, given_kwargs = tree_map(on_host, inputs)
        with torch.inference_mode():
            values = func(*given_args, **given_kwargs)
        outs = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        for layout, value in zip(fresh, outs, strict=True):
            # On the host some operators leave out what nobody asked for.
            if layout is not None and value.numel():
                layout.on_host().copy_(value)

    _launch(kernel, device)
    return results


_kernels: Final[dict[int, Any]] = {}
_errors: Final[list[BaseException]] = []
_numbers = iter(range(1, 1 << 62))


def _launch(kernel: Callable[[], None], device: int) -> None:
    number = next(_numbers)

    def call(_: Any) -> None:
        try:
            kernel()
        except BaseException as error:
            _errors.append(error)
        finally:
            _done.append(number)

    while _done:  # a callback must not free itself
        _kernels.pop(_done.pop(), None)
    if _errors:
        raise RuntimeError("a kernel has failed") from _errors.pop()
    _kernels[number] = callback = _CALL(call)
    _guard.standInEnter(device)
    status = driver.fakeCudaRun(ctypes.c_void_p(current_stream(device)), callback, None)
    if status:
        raise RuntimeError(f"CUDA error: status {status}")


_done: Final[list[int]] = []


def _check(name: str, *arguments: Any) -> None:
    status = getattr(driver, name)(*arguments)
    if status:
        raise RuntimeError(f"CUDA error: {name} answers {status}")


# -- installation -------------------------------------------------------------------------------------------

_library: torch.library.Library | None = None


def install() -> None:
    """Make ``device="cuda"`` work in this process. Before ``horovod.torch`` is imported.

    The environment must be that of ``tests.fakes.environment()``.
    """
    global driver, _library
    if _library is not None:
        return
    driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    driver.fakeCudaHostAddress.restype = ctypes.c_void_p
    driver.fakeCudaCalls.restype = ctypes.c_size_t
    _guard.standInEnter(0)
    count = ctypes.c_int()
    _check("cuDeviceGetCount", ctypes.byref(count))

    anything: Any = torch
    anything.cuda._lazy_init = lambda: None
    anything.cuda.is_available = lambda: True
    anything.cuda.device_count = lambda: count.value
    anything.cuda.current_device = lambda: int(_guard.standInDevice())
    anything.cuda.synchronize = synchronize
    anything._C._cuda_getCurrentRawStream = current_stream

    def empty(
        size: Any, dtype: Any = None, layout: Any = None, device: Any = None, *_: Any, **more: Any
    ) -> Any:
        order = more.get("memory_format") or torch.contiguous_format
        meta = torch.empty(size, dtype=dtype, device="meta", memory_format=order)
        return _new(meta, _index(device))

    def empty_strided(
        size: Any, strides: Any, dtype: Any = None, layout: Any = None, device: Any = None, *_: Any, **__: Any
    ) -> Any:
        return _new(torch.empty_strided(size, strides, dtype=dtype, device="meta"), _index(device))

    # `module.double()` would assign to `data` otherwise.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.serialization.add_safe_globals([_again])  # tensors are safe to load
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("empty.memory_format", empty, "CUDA")
    _library.impl("empty_strided", empty_strided, "CUDA")
    # `torch.tensor(values, device=...)` looks past tensors that have a class of their own.
    _library.impl("copy_", lambda *given: _run(torch.ops.aten.copy_.default, given, {}), "CUDA")
    for name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "randperm"):
        _library.impl(name, _made_on_host(name), "CUDA")
    atexit.register(_end, count.value)


def _made_on_host(name: str) -> Callable[..., torch.Tensor]:
    """Operators that would change the shape of a tensor that is there already."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(*given: Any, device: Any = None, pin_memory: Any = None, **more: Any) -> torch.Tensor:
        made: torch.Tensor = operator(*given, device=torch.device("cpu"), **more)
        return made.to(torch.device("cuda", _index(device)))

    return make


def _index(device: Any) -> int:
    index = torch.device("cuda" if device is None else device).index
    return _guard.standInDevice() if index is None else index


def _end(devices: int) -> None:
    # A kernel needs the interpreter.
    for device in range(devices):
        synchronize(device)
    if _errors:
        raise _errors[0]


def handle(stream: Stream) -> ctypes.c_void_p:
    """``stream`` as functions of the driver take it."""
    return ctypes.c_void_p(stream.handle)
