"""Submit, poll and wait for collectives: the same for every framework.

A framework folder makes one :class:`Collectives` over its :class:`~horovod.collectives.frontend.Frontend` and
puts its own argument conventions (defaults, autograd, in-place names) around the methods here. Every method
that submits returns a handle; a blocking call is ``synchronize`` of a submission with ``waited=True``, which
lets the core start the operation as soon as the last rank arrives instead of gathering a batch. The ``run_``
methods do both in one native call, for operations whose result is in memory that is known beforehand.

Every native call that names an address also gets the tensors behind it (``owners``), and holds them until
the engine is done: an exception (Ctrl-C) may come between any two instructions here, also before a handle has
been written down.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from horovod import _core
from horovod.collectives.frontend import Description, Frontend, T
from horovod.errors import HorovodInternalError, InvalidArgumentError, NotInitializedError
from horovod.runtime import lifecycle
from horovod.runtime.handle import HandleTable
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count, process_set_id

__all__ = ["Adasum", "Average", "Collectives", "Max", "Min", "Product", "Sum", "reduce_op"]

# Plain ints: scripts store them, compare them and pass them through other libraries.
Average: Final[int] = _core.AVERAGE
Sum: Final[int] = _core.SUM
Adasum: Final[int] = _core.ADASUM
Min: Final[int] = _core.MIN
Max: Final[int] = _core.MAX
Product: Final[int] = _core.PRODUCT

_ALLREDUCE: Final[int] = _core.ALLREDUCE
_ALLGATHER: Final[int] = _core.ALLGATHER
_BROADCAST: Final[int] = _core.BROADCAST
_REDUCESCATTER: Final[int] = _core.REDUCESCATTER
_BARRIER: Final[int] = _core.BARRIER

_ADASUM_DTYPES: Final = frozenset({_core.FLOAT16, _core.BFLOAT16, _core.FLOAT32, _core.FLOAT64})

_MOST_ROWS: Final = 2**31 - 1  # received counts are int32


def reduce_op(op: int | None, average: bool | None, *, stacklevel: int = 3) -> int:
    """Combine the two ways to name a reduction; ``average`` is the deprecated one.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return Average if average else Sum


class Collectives(Generic[T]):
    """The collectives over one framework's tensors, with the handles that are outstanding."""

    def __init__(self, frontend: Frontend[T]) -> None:
        self.frontend = frontend
        self.table = HandleTable()
        lifecycle.follow(self.table)
        # Bound once: these are called for every operation.
        self._describe = frontend.describe
        self._pending = self.table.pending
        self._from_one: Callable[[list[object]], T] = lambda made: frontend.from_dlpack(made[0])
        self._from_many: Callable[[list[object]], tuple[T, ...]] = lambda made: tuple(
            map(frontend.from_dlpack, made)
        )

    # -- submitting -----------------------------------------------------------------------------------------

    def allreduce(
        self,
        tensor: T,
        out: T,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Reduce ``tensor`` over all ranks into ``out`` (same shape and dtype; may be ``tensor`` itself).

        Raises:
            InvalidArgumentError: dtype, layout, the name is in flight, or this rank is not in the set.
            NotImplementedError: Adasum in a set of its own, or of a number of ranks that is no power of two.
            HorovodInternalError: not initialised, or the world has ended.
        """
        if op == Adasum:
            self._check_adasum([tensor], process_set)
        engine = current_engine()
        arguments = self._of_one(_ALLREDUCE, tensor, out, name, op, prescale, postscale, 0, process_set)
        handle = engine.submit(*arguments, False, (tensor, out))
        self._pending[handle] = (engine, tensor, out, None)
        return handle

    def run_allreduce(
        self,
        tensor: T,
        out: T,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> T:
        """:meth:`allreduce`, waited for; returns ``out``."""
        if op == Adasum:
            self._check_adasum([tensor], process_set)
        # What `current_engine` and `_of_one` do, in place: the shortest calls are a tenth shorter.
        engine = lifecycle.running or current_engine()
        address, dtype, shape = self._describe(tensor)
        engine.run(
            _ALLREDUCE,
            name,
            address,
            address if out is tensor else self._describe(out)[0],
            dtype,
            shape,
            op,
            prescale,
            postscale,
            0,
            0 if process_set is global_process_set else process_set_id(process_set),
            tensor if out is tensor else (tensor, out),
        )
        return out

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        outs: Sequence[T],
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Reduce all of ``tensors`` as one operation with one handle; element by element like
        :meth:`allreduce`."""
        if op == Adasum:
            self._check_adasum(tensors, process_set)
        engine = current_engine()
        inputs = tuple(tensors)
        results = inputs if outs is tensors else tuple(outs)
        arguments = self._of_reduced_group(inputs, results, name, op, prescale, postscale, process_set)
        handle = engine.submit_group(*arguments, False, (inputs, results))
        self._pending[handle] = (engine, inputs, results, None)
        return handle

    def run_grouped_allreduce(
        self,
        tensors: Sequence[T],
        outs: Sequence[T],
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> tuple[T, ...]:
        """:meth:`grouped_allreduce`, waited for; returns ``outs``."""
        if op == Adasum:
            self._check_adasum(tensors, process_set)
        engine = current_engine()
        inputs = tuple(tensors)
        results = inputs if outs is tensors else tuple(outs)
        arguments = self._of_reduced_group(inputs, results, name, op, prescale, postscale, process_set)
        engine.run_group(*arguments, (inputs, results))
        return results

    def allgather(
        self,
        tensor: T,
        name: str | None,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
    ) -> int:
        """Concatenate every rank's ``tensor`` along the first dimension, whose length may differ between
        ranks.

        Raises:
            HorovodInternalError: ``tensor`` has no dimensions ("rank-zero tensor").
        """
        engine = current_engine()
        address, dtype, shape = self._describe(tensor)
        handle = engine.submit(
            _ALLGATHER,
            name,
            address,
            0,
            dtype,
            shape,
            Sum,
            1.0,
            1.0,
            0,
            process_set_id(process_set),
            waited,
            tensor,
        )
        self._pending[handle] = (engine, tensor, None, self._from_one)
        return handle

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
    ) -> int:
        """Gather all of ``tensors`` as one operation with one handle."""
        engine = current_engine()
        inputs = tuple(tensors)
        addresses, dtypes, shapes = zip(*self._describe_all(inputs), strict=True)
        handle = engine.submit_group(
            _ALLGATHER,
            name,
            list(addresses),
            [0] * len(addresses),
            list(dtypes),
            list(shapes),
            Sum,
            1.0,
            1.0,
            process_set_id(process_set),
            waited,
            inputs,
        )
        self._pending[handle] = (engine, inputs, None, self._from_many)
        return handle

    def broadcast(
        self,
        tensor: T,
        out: T,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Copy the root's ``tensor`` into every rank's ``out`` (may be ``tensor``). ``root_rank`` is global.

        Raises:
            InvalidArgumentError: the root is not a rank of the set.
        """
        engine = current_engine()
        arguments = self._of_one(_BROADCAST, tensor, out, name, Sum, 1.0, 1.0, root_rank, process_set)
        handle = engine.submit(*arguments, False, (tensor, out))
        self._pending[handle] = (engine, tensor, out, None)
        return handle

    def run_broadcast(
        self, tensor: T, out: T, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> T:
        """:meth:`broadcast`, waited for; returns ``out``."""
        engine = current_engine()
        arguments = self._of_one(_BROADCAST, tensor, out, name, Sum, 1.0, 1.0, root_rank, process_set)
        engine.run(*arguments, (tensor, out))
        return out

    def alltoall(
        self,
        tensor: T,
        splits: Sequence[int],
        name: str | None,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
        place: Callable[[T], T] | None = None,
    ) -> int:
        """Send consecutive rows of ``tensor`` to the members: ``splits[i]`` of them to set rank i. The result
        is the pair of the rows that came, in the order of senders, and an int32 tensor of their numbers.

        Args:
            splits: one for each member; their sum may be less than the number of rows, the others stay.
                Empty: equally many for each.
            place: applied to the tensor of received numbers, to move it where the caller wants it.

        Raises:
            InvalidArgumentError: no rows to split; splits of another length, negative, or too many; or
                without splits a number of rows that the members do not divide.
        """
        number = process_set_id(process_set)
        engine = current_engine()
        address, dtype, shape = self._describe(tensor)
        members = member_count(process_set)
        _check_splits(shape, splits, members)
        received = self.frontend.empty_counts(members)
        handle = engine.submit_alltoall(
            name,
            address,
            dtype,
            shape,
            splits,
            self._describe(received)[0],
            number,
            waited,
            (tensor, received),
        )

        def collect(made: list[object]) -> tuple[T, T]:
            return self.frontend.from_dlpack(made[0]), received if place is None else place(received)

        self._pending[handle] = (engine, (tensor, received), None, collect)
        return handle

    def reducescatter(
        self,
        tensor: T,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
    ) -> int:
        """Reduce ``tensor`` over all members and keep this one's share of the rows: set rank r of n gets
        ``d // n + (r < d % n)`` of d rows, after those of lower ranks.

        Raises:
            InvalidArgumentError: ``tensor`` has no dimensions; dtype, layout, or the name is in flight; this
                rank is not in the set.
            HorovodInternalError: ``op`` is neither Sum nor Average; not initialised, or the world has ended.
        """
        number = process_set_id(process_set)
        engine = current_engine()
        address, dtype, shape = self._describe(tensor)
        out = self._own_rows(tensor, shape, op, process_set)
        handle = engine.submit(
            _REDUCESCATTER,
            name,
            address,
            self._describe(out)[0],
            dtype,
            shape,
            op,
            prescale,
            postscale,
            0,
            number,
            waited,
            (tensor, out),
        )
        self._pending[handle] = (engine, tensor, out, None)
        return handle

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        waited: bool = False,
    ) -> int:
        """:meth:`reducescatter` of all ``tensors`` as one operation with one handle."""
        number = process_set_id(process_set)
        engine = current_engine()
        inputs = tuple(tensors)
        described = self._describe_all(inputs)
        outs = tuple(
            self._own_rows(tensor, shape, op, process_set)
            for tensor, (_, _, shape) in zip(inputs, described, strict=True)
        )
        addresses, dtypes, shapes = zip(*described, strict=True)
        handle = engine.submit_group(
            _REDUCESCATTER,
            name,
            list(addresses),
            [self._describe(out)[0] for out in outs],
            list(dtypes),
            list(shapes),
            op,
            prescale,
            postscale,
            number,
            waited,
            (inputs, outs),
        )
        self._pending[handle] = (engine, inputs, outs, None)
        return handle

    # -- waiting --------------------------------------------------------------------------------------------

    def barrier(self, process_set: ProcessSet = global_process_set) -> None:
        """Return after every member has called.

        Raises:
            IndexError: the set has a number that does not exist (any more).
        """
        engine = current_engine()
        number = process_set_id(process_set)
        if number and number not in engine.process_sets():
            raise IndexError(f"{process_set} does not exist, or has not been registered.")
        engine.run(_BARRIER, None, 0, 0, _core.UINT8, (), Sum, 1.0, 1.0, 0, number)

    def join(self) -> int:
        """Return after every rank has joined: the one that was last. Until then this rank takes part in the
        others' allreduces, with zeros.

        Raises:
            HorovodInternalError: not initialised; a rank was lost.
        """
        engine = current_engine()
        last = engine.wait(engine.join())
        assert isinstance(last, int)
        return last

    def synchronize(self, handle: int) -> Any:
        """Wait for ``handle`` and return its result; ``None`` if the handle is unknown or already consumed.

        Raises:
            HorovodInternalError: the operation failed; the handle is consumed.
        """
        entry = self._pending.pop(handle, None)
        if entry is None:
            return None
        engine, _, result, collect = entry
        try:
            made = engine.wait(handle)
        except Exception:
            raise
        except BaseException:
            # Interrupted (Ctrl-C): the operation goes on and still writes into these tensors.
            self._pending[handle] = entry
            raise
        if collect is None:
            return result
        return collect(made if isinstance(made, list) else [])

    def synchronize_all(self, handles: list[int]) -> None:
        """Wait for all ``handles``, whose results are in memory that was given at submission.

        Raises:
            HorovodInternalError: the first failure; all handles are consumed.
        """
        if not handles:
            return
        # All were submitted to one engine: handles do not outlive it.
        entry = self._pending.get(handles[0])
        if entry is None:
            return
        try:
            entry[0].wait_all(handles)
        except Exception:
            self._drop(handles)
            raise
        # An interruption (Ctrl-C) leaves the entries: the operations go on.
        self._drop(handles)

    def poll(self, handle: int) -> bool:
        """Whether ``synchronize`` would return at once.

        Raises:
            ValueError: the handle is unknown or consumed.
        """
        entry = self._pending.get(handle)
        if entry is None:
            raise InvalidArgumentError(f"Handle {handle} was not created or has been cleared.")
        return entry[0].poll(handle)

    # -- parts ----------------------------------------------------------------------------------------------

    def _of_one(
        self,
        kind: int,
        tensor: T,
        out: T,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        root_rank: int,
        process_set: ProcessSet,
    ) -> tuple[int, str | None, int, int, int, tuple[int, ...], int, float, float, int, int]:
        """What the engine's ``submit`` and ``run`` take for an operation on one tensor."""
        address, dtype, shape = self._describe(tensor)
        return (
            kind,
            name,
            address,
            address if out is tensor else self._describe(out)[0],
            dtype,
            shape,
            op,
            prescale,
            postscale,
            root_rank,
            0 if process_set is global_process_set else process_set_id(process_set),
        )

    def _of_reduced_group(
        self,
        tensors: Sequence[T],
        outs: Sequence[T],
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> tuple[
        int, str | None, list[int], list[int], list[int], list[tuple[int, ...]], int, float, float, int
    ]:
        """What the engine's ``submit_group`` and ``run_group`` take for an allreduce."""
        described = self._describe_all(tensors)
        addresses = [address for address, _, _ in described]
        dtypes = [dtype for _, dtype, _ in described]
        shapes = [shape for _, _, shape in described]
        results = addresses if outs is tensors else [self._describe(out)[0] for out in outs]
        number = process_set_id(process_set)
        return _ALLREDUCE, name, addresses, results, dtypes, shapes, op, prescale, postscale, number

    def _drop(self, handles: list[int]) -> None:
        for handle in handles:
            self._pending.pop(handle, None)

    def _describe_all(self, tensors: Sequence[T]) -> list[Description]:
        if not tensors:
            raise InvalidArgumentError("A grouped operation needs at least one tensor.")
        return [self._describe(tensor) for tensor in tensors]

    def _own_rows(self, tensor: T, shape: Sequence[int], op: int, process_set: ProcessSet) -> T:
        """Memory for this rank's share of the rows of ``tensor``."""
        if op not in (Average, Sum):
            raise HorovodInternalError(
                f"Reducescatter supports Average and Sum only, got operator {op}.", recoverable=False
            )
        if not len(shape):
            raise InvalidArgumentError("Reducescatter shares out rows; a tensor without dimensions has none.")
        if process_set.included() is False:
            raise InvalidArgumentError(
                "Invalid process set id for this rank: it is not a member of the provided process set "
                f"{process_set}."
            )
        members = member_count(process_set)
        rows, more = divmod(shape[0], members)
        return self.frontend.empty_rows(tensor, rows + ((process_set.rank() or 0) < more))

    def _check_adasum(self, tensors: Sequence[T], process_set: ProcessSet) -> None:
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support process sets other than the global one.")
        size = lifecycle.current().topology.size
        if size & (size - 1):
            raise NotImplementedError(f"Adasum needs a number of ranks that is a power of two, not {size}.")
        for tensor in tensors:
            if self._describe(tensor)[1] not in _ADASUM_DTYPES:
                raise InvalidArgumentError(
                    f"Tensor type {self.frontend.dtype_name(tensor)} is not supported by Adasum: floating "
                    "types of 16, 32 and 64 bits are."
                )


def _check_splits(shape: Sequence[int], splits: Sequence[int], members: int) -> None:
    if not len(shape):
        raise InvalidArgumentError("Alltoall sends rows; a tensor without dimensions has none.")
    rows = shape[0]
    if not len(splits):
        if rows % members:
            raise InvalidArgumentError(
                f"Without splits the first dimension must be divisible by the number of members: {rows} rows "
                f"for {members}."
            )
        splits = (rows // members,)
    elif len(splits) != members:
        raise InvalidArgumentError(
            f"Number of splits ({len(splits)}) differs from that of members ({members})."
        )
    if min(splits) < 0:
        raise InvalidArgumentError(f"Splits must not be negative: {list(splits)}.")
    if sum(splits) > rows:
        raise InvalidArgumentError(
            f"Sum of splits ({sum(splits)}) is greater than the number of rows ({rows})."
        )
    if max(splits) > _MOST_ROWS:
        raise InvalidArgumentError(f"More than {_MOST_ROWS} rows to one member; use a wider tensor.")


def current_engine() -> _core.Engine:
    """The engine of the current world.

    Raises:
        HorovodInternalError: there is none. Operations raise this one, questions about the world raise
            ``NotInitializedError``: existing scripts tell the two apart.
    """
    engine = lifecycle.running
    if engine is not None:
        return engine
    try:
        return lifecycle.current().engine
    except NotInitializedError as error:
        raise HorovodInternalError(str(error)) from error
