"""
The native engine: see horovod.runtime.lifecycle for the one instance of a process.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Tensor: TypeAlias = (
    tuple[int, int, int, tuple[int, ...]]
    | tuple[int, int, int, tuple[int, ...], int, int]
    | tuple[int, int, int, tuple[int, ...], int, int, int | None]
    | tuple[int, int, int, tuple[int, ...], int, int, int | None, Sequence[int], int]
)
"""in, out, dtype, shape[, device, device_index[, stream[, splits, received]]]: see Engine.submit"""

UINT8: int = 0

INT8: int = 1

UINT16: int = 2

INT16: int = 3

INT32: int = 4

INT64: int = 5

FLOAT16: int = 6

BFLOAT16: int = 7

FLOAT32: int = 8

FLOAT64: int = 9

BOOL: int = 10

UINT32: int = 11

UINT64: int = 12

COMPLEX64: int = 13

COMPLEX128: int = 14

FLOAT8_E4M3FN: int = 15

FLOAT8_E5M2: int = 16

FLOAT8_E4M3FNUZ: int = 17

FLOAT8_E5M2FNUZ: int = 18

AVERAGE: int = 0

SUM: int = 1

ADASUM: int = 2

MIN: int = 3

MAX: int = 4

PRODUCT: int = 5

ASYNCHRONOUS: int = 0

AWAITED: int = 1

BLOCKING: int = 2

HOST: int = 0

CUDA: int = 1

XPU: int = 2

MPS: int = 3

ALLREDUCE: int = 0

ALLGATHER: int = 1

BROADCAST: int = 2

ALLTOALL: int = 3

REDUCESCATTER: int = 4

BARRIER: int = 5

JOIN: int = 6

REDUCE: int = 10

def segment_bytes(local_size: int) -> int:
    """
    Bytes of the memfd that each rank of a transport group makes, if no limit is lower.
    """

def segment_base_bytes(local_size: int) -> int:
    """
    How many of them need memory from the start; the rest is address space until a process set or a shared tensor uses it.
    """

def missing_cipher() -> str:
    """
    What of OpenSSL this process does not have, so that it cannot protect connections; '' if it can.
    """

class DeviceResult:
    """A result for a device, which its owner gives memory there."""

    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def device_index(self) -> int: ...
    def deliver(self, address: int, stream: int | None) -> None:
        """
        Copy it to that address, in the order of the stream; None: it is there on return. Once.
        """

class HostDescriber:
    """
    Describes ordinary tensors of PyTorch in host memory; `otherwise` is called with what it does not know. `codes`: dtype -> number. Tensors of just `classes` are described by `exchange`, the `__dlpack_c_exchange_api__` of these, if there is one.
    """

    def __init__(
        self,
        codes: dict[Any, int],
        otherwise: Callable[..., Any],
        classes: tuple[type, ...] = (),
        exchange: object = None,
    ) -> None: ...
    def describe(self, tensor: Any, out: int | None = None, /) -> Any:
        """
        The tuple that Engine.submit() takes. out: address of the result, 0 if the engine allocates it; None: the tensor is its own result.
        """

class HostImporter:
    """
    Makes tensors of PyTorch of what the engine has allocated in host memory, by `exchange`, their class's `__dlpack_c_exchange_api__`; `otherwise` is called where it is None or cannot.
    """

    def __init__(self, otherwise: Callable[..., Any], exchange: object = None) -> None: ...
    def take(self, capsule: object, like: Any, /) -> Any:
        """
        A tensor that owns the memory of `capsule`, which is used up then. like: the tensor that it is the result of.
        """

class Engine:
    """The engine of one rank. Descriptors given to it are its own."""

    def __init__(self, settings: dict[str, object]) -> None:
        """
        Every setting of the engine by its name, times in seconds; ValueError if one is missing or unknown.
        """

    def own_segment(self, memfd: int, engine_bell: int, waiter_bell: int) -> None: ...
    def add_local_peer(
        self, rank: int, memfd: int, engine_bell: int, waiter_bell: int, pidfd: int, liveness: int
    ) -> None: ...
    def add_network_peer(
        self, rank: int, control: int, data: Sequence[int], protection: int = 0, keys: Sequence[bytes] = []
    ) -> None: ...
    def add_absent_peer(self, rank: int, streams: int) -> None:
        """A rank whose data connections are made when an operation needs them."""

    def use_backend(self, type: object, name: str) -> None:
        """
        All operations between ranks go by objects of that class of Python. Before start().
        """

    def watch_threads(self, only_these: Callable[[list[int]], bool]) -> None:
        """
        only_these(threads): these threads wait for operations; whether no other thread could submit any. Without it nobody knows, and a deadlock takes long to be proven.
        """

    def open(self) -> None:
        """
        Take the memory that it needs, without a word to other ranks; start() does it otherwise.
        """

    def start(self) -> None: ...
    def wanted_bell(self) -> int:
        """
        A descriptor that is readable while connections to absent peers are wanted; -1 if none are absent. After open().
        """

    def wanted_connections(self) -> list[int]:
        """The absent peers that operations have asked for since the last call."""

    def add_connections(
        self, rank: int, data: Sequence[int], protection: int = 0, keys: Sequence[bytes] = []
    ) -> None:
        """All data connections to an absent peer."""

    def refuse_connections(self, rank: int, reason: str) -> None:
        """There will be none: operations that need them fail for that reason."""

    def cover(self, descriptor: int) -> None:
        """In a forked child it becomes /dev/null, until uncover()."""

    def uncover(self, descriptor: int) -> None:
        """Before it is closed."""

    def submit(
        self,
        kind: int,
        name: str | None,
        tensors: Tensor | list[Tensor] | None,
        op: int,
        prescale: float,
        postscale: float,
        root: int,
        process_set: int,
        mode: int,
        owners: object = None,
        /,
    ) -> Any:
        """
        Submit a contiguous tensor, a list of them that run together, or None for a kind that has none. A tensor is (in, out, dtype, shape, device, device_index, stream, splits, received), short where the rest is nothing: addresses, out 0 where the engine allocates; in 0 of an allreduce with an out: this rank brings nothing, and out, which holds zeros, gets what the others bring; of alltoall, how many rows go to each member, and the address of an int32 for each member, where the numbers of rows that came go. stream None: it is not known; the default one comes before and after, and whoever waits, waits on the host.

        Returns the handle. BLOCKING waits: the list of results, as wait() returns it; 0 if there is nothing to take; or the handle of results on devices. If a signal handler raises meanwhile (Ctrl-C), the operation goes on without the caller. AWAITED: somebody waits for the handle at once. owners: what keeps that memory; it is held until the engine is done with it, also if nobody waits for the handle.
        """

    def add_process_set(self, ranks: Sequence[int]) -> int:
        """
        Collective over the world. Returns the handle; its result is the number of the new set.
        """

    def remove_process_set(self, process_set: int) -> int:
        """
        Collective over the world. Returns the handle; its result is the number of the set.
        """

    def process_sets(self) -> dict[int, list[int]]:
        """Members of the process sets by number; 0 is the world."""

    def empty(self, dtype: int, shape: tuple[int, ...], shared: bool = False) -> object:
        """
        Recycled memory with any content (DLPack). shared: the ranks of this host reach it, and reduce what is in it where it lies. MemoryError if there is none.
        """

    def poll(self, handle: int) -> bool:
        """Whether it is done. ValueError if unknown."""

    def wait_for(self, handle: int, timeout_s: float) -> bool:
        """
        Whether wait() would return at once, after `timeout_s` seconds at most. ValueError if unknown.
        """

    def wait(
        self, handle: int, stream_of: Callable[[int], int | None] | None = None
    ) -> list[object] | int | None:
        """
        Wait, consume the handle, return results that the engine allocated (DLPack, or DeviceResult), the number that the operation ends with (join, process sets), or None. Of tensors on a device: what is put from now on into stream_of(number of the device) comes after the operation (where that is None: into the stream that the tensor named); without stream_of it is over there, too.
        """

    def wait_all(
        self, handles: list[int], stream_of: Callable[[int], int | None] | None = None
    ) -> list[tuple[int, int]]:
        """
        Wait for all and consume them; raises the first error. Returns the tensors that no rank has brought anything of: handle and place in the group.
        """

    def shutdown(self, script_over: bool = False, failure: str = "") -> None:
        """
        End the world for all ranks; idempotent. `script_over`: the script has come to its end; `failure`: how it failed.
        """

    def release(self, patience_s: float = 0.0) -> None:
        """
        After shutdown(): end the engine, with its descriptors, memory and threads, whoever still refers to this object. Calls of other threads get `patience_s` seconds to end; what they use goes with the last of them. Handles that nobody has waited for raise when they are waited for.
        """

    def failure(self) -> BaseException | None:
        """
        Why the world has failed, if it has: the first cause, or how the script of a rank failed.
        """

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """
        Begin a timeline in a new file (on rank 0; elsewhere nothing is written).
        """

    def stop_timeline(self) -> None:
        """End the timeline: its file is complete then."""

    def paths(self) -> dict[str, tuple[int, int]]:
        """Data path -> (batches, bytes)."""

    def capi(self) -> int:
        """Address of the table of C functions for framework glue."""

    def address(self) -> int:
        """Address of the engine, for the functions of capi()."""
