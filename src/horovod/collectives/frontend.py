"""Interface through which the framework-neutral code handles a framework's tensors.

A framework folder implements this Protocol once; everything in ``collectives``, ``exchange`` and ``objects``
is written over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from horovod import _core

T = TypeVar("T")

Description: TypeAlias = "_core.Tensor"
"""A tensor as the core takes it: address, address of its result, dtype code and shape; if it is not in host
memory also the code of its device, its number among those of its kind, and the stream in whose order its
content is there. A plain tuple: it is built for every call."""


class Frontend(Protocol[T]):
    """One framework's tensors, seen as contiguous memory.

    The buffers handed to the core are written behind the framework's back; whoever calls keeps the tensor
    alive until the operation has completed.
    """

    def peek(self, tensor: T) -> Description | None:
        """Describe ``tensor``, which is its own result, if the core can work on it as it is; else ``None``.
        The hot path. To be called in the order of the stream in which the content of ``tensor`` is made."""

    def describe(self, tensor: T, out: int | None = None, /) -> Description:
        """Like :meth:`peek`, but of tensors on any device, and one that cannot be described is an error.

        Args:
            out: address of the result; 0: the engine allocates it; ``None``: ``tensor`` is its own result.

        Raises:
            InvalidArgumentError: dtype not supported, not dense, or not contiguous.
            HorovodInternalError: it has no memory, or on a device that the core has no code for.
        """

    def address(self, out: T) -> int:
        """Address of the content of ``out``, which was made for the result of a tensor that :meth:`describe`
        takes.

        Raises:
            InvalidArgumentError: it has no memory.
        """

    def compute_threads(self) -> int:
        """Threads of this process that compute at the same time, in host memory."""

    def dtype_name(self, tensor: T) -> str:
        """The dtype as the framework prints it, for messages."""

    def empty_like(self, tensor: T) -> T:
        """A new tensor of the same shape and dtype, with any content; contiguous if ``tensor`` is."""

    def empty_rows(self, like: T, rows: int) -> T:
        """A new contiguous tensor with any content: dtype and shape of ``like``, but ``rows`` rows."""

    def empty_counts(self, count: int) -> T:
        """A new one-dimensional int32 tensor in host memory, with any content."""

    def contiguous_copy(self, tensor: T) -> T:
        """A new contiguous tensor with the values of a dense ``tensor``, in row-major order."""

    def from_dlpack(self, capsule: object, like: T) -> T:
        """Take over memory that the core allocated, as a tensor of the dtype of ``like``, which was given for
        it."""

    def from_bytes(self, data: bytearray) -> T:
        """A one-dimensional uint8 tensor over ``data``, without a copy; it keeps ``data`` alive."""

    def to_bytes(self, tensor: T) -> bytes:
        """Copy of the content of a contiguous uint8 tensor."""

    def from_integers(self, values: Sequence[int]) -> T:
        """A one-dimensional int64 tensor."""

    def to_integers(self, tensor: T) -> list[int]:
        """The values of a one-dimensional int64 tensor."""


class DeviceFrontend(Frontend[T], Protocol[T]):
    """A frontend whose tensors may also be on devices, in the order of their streams."""

    def from_device(self, result: _core.DeviceResult, like: T) -> T:
        """A new tensor on the device of ``result``, with its content in the order of the current stream; of
        the dtype of ``like``, which was given for it."""

    def current_stream(self, device: int) -> int | None:
        """The stream of CUDA device ``device`` into which the calling thread puts work; 0: the default;
        ``None``: the frontend does not know. Then only what follows in the stream that a tensor named when
        it was submitted comes after the operation."""
