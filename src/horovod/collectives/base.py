"""Submit, poll and wait: what the collectives of this folder are made of.

Every method that submits returns a handle. The ``run_`` methods return the result. The core knows then that
somebody waits: it starts the operation as soon as the last rank arrives instead of gathering a batch, and
ranks may agree on it by themselves.

Every native call that names an address also gets the tensors behind it (``owners``), and holds them until
the engine is done: an exception (Ctrl-C) may come between any two instructions here, also before a handle has
been written down.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Real
from typing import Any, Final, Generic, cast

from horovod import _core
from horovod.collectives.frontend import Description, DeviceFrontend, Frontend, T
from horovod.collectives.ops import Sum, checked_op
from horovod.errors import HorovodError, InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.handle import Collect, HandleTable
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id

__all__ = ["ASYNCHRONOUS", "AWAITED", "BLOCKING", "Base", "checked_root", "current_engine", "explained"]

ASYNCHRONOUS: Final[int] = _core.ASYNCHRONOUS
AWAITED: Final[int] = _core.AWAITED
BLOCKING: Final[int] = _core.BLOCKING


def current_engine() -> _core.Engine:
    """The engine of the current world.

    Raises:
        NotInitializedError: there is none. That is an error of the script, which no new world mends: so no
            ``HorovodInternalError``, at which elastic loops try again.
        HorovodInternalError: this process was forked from one that had a world.
    """
    return lifecycle.running or lifecycle.current().engine


_MOST_RANKS: Final = 1 << 31
_PLAIN: Final = (Sum, 1.0, 1.0, 0)  # what kinds that do not reduce, and have no root, say of both


def checked_root(root_rank: Any) -> int:
    """``root_rank`` as the core takes it. Whether there is such a rank is seen later, by its set.

    Raises:
        ValueError: it is no number of a rank.
    """
    try:
        number = operator.index(root_rank)
    except TypeError:
        raise InvalidArgumentError(
            f"root_rank must be the number of a rank, such as 0, got {root_rank!r}."
        ) from None
    if not -_MOST_RANKS <= number < _MOST_RANKS:
        raise InvalidArgumentError(
            f"root_rank={number} is out of range: ranks are numbered from 0 to hvd.size() - 1."
        )
    return number


def explained(error: Exception, op: Any, prescale: Any, postscale: Any, root: Any = 0) -> Exception:
    """``error`` of the core, which refused arguments: in the words of the caller, if they are among these.
    Its own words list C++ signatures."""
    try:
        checked_op(op)
        for what, factor in (("prescale_factor", prescale), ("postscale_factor", postscale)):
            if not _is_factor(factor):
                return InvalidArgumentError(f"{what} must be a number, got {factor!r:.60}.")
        checked_root(root)
    except InvalidArgumentError as better:
        return better
    return error


def _is_factor(value: Any) -> bool:
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:  # a whole number beyond those of the core
        return False
    return True


def _is_outstanding(engine: _core.Engine, handle: int) -> bool:
    """Return whether ``handle`` can still be waited for: after a wait that was interrupted, not after one
    that failed.
    """
    try:
        engine.poll(handle)
    except (ValueError, HorovodError):  # it is unknown, or its world has gone
        return False
    return True


class Base(Generic[T]):
    """One framework's outstanding operations, and the parts that its collectives are made of."""

    def __init__(self, frontend: Frontend[T]) -> None:
        self.frontend = frontend
        self.table = HandleTable()
        lifecycle.follow(self.table)
        # Bound once: these are called for every operation.
        self._describe = frontend.describe
        self._address = frontend.address
        self._pending = self.table.pending
        self._stream_of = getattr(frontend, "current_stream", None)  # see DeviceFrontend
        from_dlpack = frontend.from_dlpack

        def from_one(made: list[object], given: T) -> T:
            result = made[0]
            return (
                self._taken(result, given)
                if result.__class__ is _core.DeviceResult
                else from_dlpack(result, given)
            )

        self._from_one: Callable[[list[object], T], T] = from_one
        self._from_many: Callable[[list[object], tuple[T, ...]], tuple[T, ...]] = lambda made, given: tuple(
            map(self._taken, made, given)
        )

    # -- waiting --------------------------------------------------------------------------------------------

    def synchronize(self, handle: int) -> Any:
        """Wait for an asynchronous operation and return its result: a tensor, a tuple for a group, or the
        pair of rows and received numbers of an alltoall.

        The handle is consumed. An unknown or already consumed handle gives ``None``.

        Raises:
            HorovodInternalError: the operation failed.
        """
        entry = self._pending.pop(handle, None)
        if entry is None:
            return None
        engine, inputs, result, collect = entry
        try:
            made = engine.wait(handle, self._stream_of)
        except BaseException as error:
            # Interrupted, by Ctrl-C or what another handler of a signal raises: the operation goes on and
            # still writes into these tensors.
            if not isinstance(error, Exception) or _is_outstanding(engine, handle):
                self._pending[handle] = entry
            raise
        if collect is None:
            return result
        return collect(made if isinstance(made, list) else [], inputs)

    def synchronize_all(self, handles: list[int]) -> list[tuple[int, int]]:
        """Wait for all ``handles``, whose results are in memory that was given at submission.

        Returns:
            Handle and place in its group of each tensor that no rank has brought anything of: there is no
            result.

        Raises:
            HorovodInternalError: the first failure; all handles are consumed.
        """
        if not handles:
            return []
        # All were submitted to one engine: handles do not outlive it.
        entry = self._pending.get(handles[0])
        if entry is None:
            return []
        try:
            absent = entry[0].wait_all(handles, self._stream_of)
        except BaseException:
            # Interrupted, the operations that are not over go on.
            self._drop([handle for handle in handles if not _is_outstanding(entry[0], handle)])
            raise
        self._drop(handles)
        return absent

    def poll(self, handle: int) -> bool:
        """Return whether ``synchronize`` would return at once.

        Raises:
            ValueError: the handle is unknown or already consumed.
        """
        return self._engine_of(handle).poll(handle)

    def wait_for(self, handle: int, timeout_s: float) -> bool:
        """Return whether ``synchronize`` would return at once, after ``timeout_s`` at most.

        Raises:
            ValueError: the handle is unknown or consumed.
        """
        return self._engine_of(handle).wait_for(handle, timeout_s)

    def _engine_of(self, handle: int) -> _core.Engine:
        entry = self._pending.get(handle)
        if entry is None:
            raise InvalidArgumentError(f"Handle {handle} was not created or has been cleared.")
        return entry[0]

    def _taken(self, made: object, given: T) -> T:
        """A result that the engine has allocated for ``given``, as a tensor."""
        if isinstance(made, _core.DeviceResult):
            return cast("DeviceFrontend[T]", self.frontend).from_device(made, given)
        return self.frontend.from_dlpack(made, given)

    def _drop(self, handles: list[int]) -> None:
        for handle in handles:
            self._pending.pop(handle, None)

    # -- submitting -----------------------------------------------------------------------------------------

    def _start(
        self,
        kind: int,
        name: str | None,
        inputs: Any,
        result: Any,
        process_set: ProcessSet,
        given: Description | list[Description] | None = None,
        how: tuple[int, float, float, int] = _PLAIN,
        collect: Collect | None = None,
    ) -> int:
        """Submit a tensor, a tuple of them as a group, or no tensor (``None``); returns the handle.

        Args:
            inputs, result: of the same structure; ``result`` may be ``inputs`` itself. ``None``: the engine
                allocates what ``synchronize`` returns.
            given: ``inputs`` and ``result`` as the engine takes them, if the caller knows.
            how: operation, the factors before and after it, and the root.
            collect: what makes the result of that which the engine allocated, if not the frontend alone.
        """
        engine = lifecycle.running or current_engine()
        if given is None:
            given = self._given(inputs, result)
        if collect is None and result is None and inputs is not None:
            collect = self._from_many if isinstance(inputs, tuple) else self._from_one
        handle: int = self._submit(engine, kind, name, inputs, result, process_set, given, how, ASYNCHRONOUS)
        self._pending[handle] = engine, inputs, result, collect
        return handle

    def _run(
        self,
        kind: int,
        name: str | None,
        inputs: Any,
        result: Any,
        process_set: ProcessSet,
        given: Description | list[Description] | None = None,
        how: tuple[int, float, float, int] = _PLAIN,
        collect: Collect | None = None,
    ) -> Any:
        """Like :meth:`_start`, but it is over on return; returns the result."""
        engine = lifecycle.running or current_engine()
        if given is None:
            given = self._given(inputs, result)
        made = self._submit(engine, kind, name, inputs, result, process_set, given, how, BLOCKING)
        if result is None and collect is None and inputs is not None:
            collect = self._from_many if isinstance(inputs, tuple) else self._from_one
        if made.__class__ is list:
            return result if collect is None else collect(made, inputs)
        if made:  # on a device: whoever takes it, also if it is empty, says in which stream
            self._pending[made] = engine, inputs, result, collect
            return self.synchronize(made)
        return result

    def _submit(
        self,
        engine: _core.Engine,
        kind: int,
        name: str | None,
        inputs: Any,
        result: Any,
        process_set: ProcessSet,
        given: Description | list[Description] | None,
        how: tuple[int, float, float, int],
        mode: int,
    ) -> Any:
        op, prescale, postscale, root = how
        if op.__class__ is not int:
            op = checked_op(op)
        try:
            return engine.submit(
                kind,
                name,
                given,
                op,
                prescale,
                postscale,
                root,
                0 if process_set is global_process_set else process_set_id(process_set),
                mode,
                (inputs, result),
            )
        except (TypeError, ValueError) as error:
            raise explained(error, op, prescale, postscale, root) from None

    def _given(self, inputs: Any, result: Any) -> Description | list[Description] | None:
        """The tensors as the engine takes them."""
        if inputs is None:
            return None
        if isinstance(inputs, tuple):
            return self._given_all(inputs, result)
        if result is None:
            return self._describe(inputs, 0)
        return self._describe(inputs, None if result is inputs else self._address(result))

    def _given_all(self, tensors: tuple[T, ...], outs: tuple[T, ...] | None) -> list[Description]:
        if not tensors:
            raise InvalidArgumentError("A grouped operation needs at least one tensor.")
        if outs is None:
            return [self._describe(tensor, 0) for tensor in tensors]
        if outs is tensors:
            return list(map(self._describe, tensors))
        return [
            self._describe(tensor, None if out is tensor else self._address(out))
            for tensor, out in zip(tensors, outs, strict=True)
        ]
