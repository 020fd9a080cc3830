"""Allreduce: every rank gets the combination of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from horovod import _core
from horovod.collectives.base import BLOCKING, Base, current_engine, explained
from horovod.collectives.frontend import Description, T
from horovod.collectives.ops import Adasum
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set, process_set_id

__all__ = ["Allreduce", "check_adasum"]

_ALLREDUCE: Final[int] = _core.ALLREDUCE
_ADASUM_DTYPES: Final = frozenset({_core.FLOAT16, _core.BFLOAT16, _core.FLOAT32, _core.FLOAT64})


class Allreduce(Base[T]):
    def allreduce(
        self,
        tensor: T,
        out: T,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        absent: bool = False,
    ) -> int:
        """Reduce ``tensor`` over all ranks into ``out`` (same shape and dtype; may be ``tensor`` itself).

        Args:
            absent: this rank brings nothing; ``out`` is ``tensor`` and holds zeros. Where all ranks say so,
                nothing is reduced: see :meth:`synchronize_all`.

        Raises:
            InvalidArgumentError: dtype, layout, the name is in flight, or this rank is not in the set.
            NotImplementedError: Adasum in a set of its own, or of a number of ranks that is no power of two.
            HorovodInternalError: the world has ended.
        """
        if op == Adasum:
            self._check_adasum([tensor], process_set)
        given = _without(self._describe(tensor)) if absent else None
        return self._start(_ALLREDUCE, name, tensor, out, process_set, given, (op, prescale, postscale, 0))

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
        # What `_start` does, in place: the shortest calls are a tenth shorter.
        engine = lifecycle.running or current_engine()
        try:
            engine.submit(
                _ALLREDUCE,
                name,
                self._describe(tensor, None if out is tensor else self._address(out)),
                op,
                prescale,
                postscale,
                0,
                0 if process_set is global_process_set else process_set_id(process_set),
                BLOCKING,
                tensor if out is tensor else (tensor, out),
            )
        except (TypeError, ValueError) as error:
            raise explained(error, op, prescale, postscale) from None
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
        *,
        absent: Collection[int] = (),
    ) -> int:
        """Reduce all of ``tensors`` as one operation with one handle; element by element like
        :meth:`allreduce`. ``absent``: places of those of which this rank brings nothing."""
        if op == Adasum:
            self._check_adasum(tensors, process_set)
        inputs = tuple(tensors)
        results = inputs if outs is tensors else tuple(outs)
        given = self._given_all(inputs, results)
        for place in absent:
            given[place] = _without(given[place])
        return self._start(
            _ALLREDUCE, name, inputs, results, process_set, given, (op, prescale, postscale, 0)
        )

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
        inputs = tuple(tensors)
        results = inputs if outs is tensors else tuple(outs)
        self._run(_ALLREDUCE, name, inputs, results, process_set, None, (op, prescale, postscale, 0))
        return results

    def _check_adasum(self, tensors: Sequence[T], process_set: ProcessSet) -> None:
        check_adasum(process_set)
        for tensor in tensors:
            if self._describe(tensor)[2] not in _ADASUM_DTYPES:
                raise InvalidArgumentError(
                    f"Tensor type {self.frontend.dtype_name(tensor)} is not supported by Adasum: floating "
                    "types of 16, 32 and 64 bits are."
                )


def _without(given: Description) -> Description:
    """A tensor of which this rank brings nothing, as the engine takes it."""
    return (0, *given[1:])


def check_adasum(process_set: ProcessSet) -> None:
    """Refuse ranks whose vectors Adasum cannot combine.

    Raises:
        NotImplementedError: a set of its own, or a number of ranks that is no power of two.
    """
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support process sets other than the global one.")
    size = lifecycle.current().topology.size
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a number of ranks that is a power of two, not {size}.")
