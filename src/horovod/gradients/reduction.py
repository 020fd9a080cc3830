"""The reduction of the gradients of a step that come all at once, as lists beside their variables.

Nothing here knows a framework: gradients are only ever looked at through functions that the caller gives.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final

from horovod.collectives.forms import Collectives
from horovod.collectives.frontend import T
from horovod.gradients.compression import reduce_compressed
from horovod.gradients.groups import Groups, plan_groups
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import VariableSet
from horovod.runtime.process_set import ProcessSet, member_count

__all__ = [
    "PartialReduction",
    "exchange",
    "filled",
    "ranks_of_average",
    "reduce_in_groups",
    "reduce_present",
    "reduce_some",
    "share_of_average",
    "stays_local",
]

_SPELLED_OUT: Final = 16
"""Missing gradients whose places stand in the names of operations."""


def stays_local(process_set: ProcessSet) -> bool:
    """Return whether this process keeps its own gradients: it is not in the set, or alone in it.

    Raises:
        ValueError: ``init()`` has not been called.
        TypeError: the set is not registered.
    """
    return member_count(process_set) == 1 or not process_set.included()


def ranks_of_average(process_set: ProcessSet) -> int:
    """By what an average over the ranks divides: 1 where this process keeps its own gradients."""
    return 1 if stays_local(process_set) else member_count(process_set)


def share_of_average(settings: GradientSettings) -> Callable[[Any], Any] | None:
    """A function that divides a local gradient by the number of ranks; None if the settings do not want
    that."""
    if not settings.scale_local_gradients:
        return None
    return lambda gradient: gradient / ranks_of_average(settings.process_set)


def reduce_in_groups(
    tensors: Sequence[Any],
    compression: Any,
    reduce: Callable[[list[list[Any]]], Sequence[Sequence[Any]]],
    variables: Sequence[Any] | None = None,
    groups: Groups = None,
    kind: Callable[[Any], Hashable] = lambda tensor: tensor.dtype,
) -> list[Any]:
    """Compress ``tensors``, reduce them, and decompress: an operation has one dtype, and a compressor may
    choose another one for each tensor.

    Args:
        reduce: takes the operations, each a list of compressed tensors of one kind, and returns what it
            makes of them.
        variables, groups: see :func:`horovod.gradients.groups.plan_groups`.
        kind: what must be equal within one operation.
    """
    return reduce_some(tensors, (), compression, lambda planned, _: reduce(planned), variables, groups, kind)


def reduce_some(
    tensors: Sequence[Any],
    absent: Collection[int],
    compression: Any,
    reduce: Callable[[list[list[Any]], list[list[int]]], Sequence[Sequence[Any]]],
    variables: Sequence[Any] | None = None,
    groups: Groups = None,
    kind: Callable[[Any], Hashable] = lambda tensor: tensor.dtype,
) -> list[Any]:
    """:func:`reduce_in_groups` where this rank brings nothing at the places ``absent``: there are zeros.

    Args:
        reduce: also takes the places in each operation of which this rank brings nothing; returns ``None``
            for what no rank has brought.
    """

    nothing = frozenset(absent)

    def in_groups(small: list[Any]) -> list[Any]:
        plan = plan_groups([kind(tensor) for tensor in small], variables, groups)
        missing = [[at for at, position in enumerate(group) if position in nothing] for group in plan]
        results = list(small)
        outcome = reduce([[small[position] for position in group] for group in plan], missing)
        for group, reduced in zip(plan, outcome, strict=True):
            for position, tensor in zip(group, reduced, strict=True):
                results[position] = tensor
        return results

    return reduce_compressed(compression, tensors, in_groups)


def filled(gradients: Sequence[Any], zero: Callable[[int], Any]) -> tuple[list[Any], list[int]]:
    """``gradients`` with ``zero(place)`` for each that is ``None``, and the places of these."""
    absent = [place for place, gradient in enumerate(gradients) if gradient is None]
    complete = list(gradients)
    for place in absent:
        complete[place] = zero(place)
    return complete, absent


def reduce_present(
    gradients: Sequence[Any], reduce: Callable[[list[Any], list[int], str], Sequence[Any]]
) -> list[Any]:
    """Let ``reduce`` have the gradients that are there; ``None`` stays ``None``. For graphs: which are there
    is a part of them. Elsewhere ranks that have none bring zeros, see :func:`reduce_some`.

    Args:
        reduce: takes them, their places in ``gradients``, and the end of the names of its operations. The end
            says which places have no gradient: ranks that lack different ones would otherwise reduce
            gradients of different variables with each other. Empty if all are there.
    """
    result = list(gradients)
    present = [place for place, gradient in enumerate(result) if gradient is not None]
    if present:
        reduced = reduce([result[place] for place in present], present, _lacking(result))
        for place, gradient in zip(present, reduced, strict=True):
            result[place] = gradient
    return result


def _lacking(gradients: Sequence[Any]) -> str:
    """``".lacks.1.3"``: the places without a gradient; of many, their number and a checksum. The engine
    takes names that differ in this alone for one (``core/engine/control/conflicts.cpp``)."""
    places = [str(place) for place, gradient in enumerate(gradients) if gradient is None]
    if len(places) > _SPELLED_OUT:
        places = [str(len(places)), str(zlib.crc32(".".join(places).encode()))]
    return ".".join((".lacks", *places)) if places else ""


def exchange(
    collectives: Collectives[T],
    groups: Sequence[Sequence[T]],
    outs: Sequence[Sequence[T]],
    settings: GradientSettings,
    lacking: str = "",
    absent: Sequence[Collection[int]] | None = None,
) -> list[list[T | None]]:
    """Reduce ``groups`` into ``outs``, of the same shapes or themselves: one operation each, all at once.

    Args:
        lacking: see :func:`reduce_present`.
        absent: by operation, the places of which this rank brings nothing; there ``groups`` and ``outs`` have
            the same tensor of zeros.

    Returns:
        ``outs``, with ``None`` for what no rank has brought.
    """
    absent = absent or [()] * len(groups)
    handles = [
        collectives.grouped_allreduce(
            group,
            out,
            f"{settings.name}.{number}{lacking}",
            settings.op,
            *settings.scales,
            settings.process_set,
            absent=places,
        )
        for number, (group, out, places) in enumerate(zip(groups, outs, absent, strict=True))
    ]
    nobody = set(collectives.synchronize_all(handles))
    return [
        [None if (handle, place) in nobody else tensor for place, tensor in enumerate(out)]
        for handle, out in zip(handles, outs, strict=True)
    ]


class PartialReduction:
    """Reduces the gradients of a step, except for those of the variables that were registered as local.

    Args:
        reduce: takes gradients (``None`` where there is none) and their variables, and returns the reduced
            gradients.
        scale: takes a local gradient and returns it divided by the number of ranks, the scale of an average
            over the ranks; ``None``: local gradients stay as they are.

    Attributes:
        local: the variables that were registered.
    """

    def __init__(self, reduce: Callable[..., Sequence[Any]], scale: Callable[[Any], Any] | None) -> None:
        self._reduce = reduce
        self._scale = scale
        self.local = VariableSet()

    def register(self, variable: Any) -> None:
        """From now on the gradient of ``variable`` is not reduced."""
        self.local.add(variable)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], **options: Any) -> list[Any]:
        """The gradients to use, in the order of ``variables``; ``options`` are for ``reduce``."""
        if not self.local:
            return list(self._reduce(list(gradients), list(variables), **options))
        result = list(gradients)
        common = []
        for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if variable not in self.local:
                common.append(position)
            elif gradient is not None and self._scale is not None:
                result[position] = self._scale(gradient)
        if common:
            reduced = self._reduce(
                [gradients[position] for position in common],
                [variables[position] for position in common],
                **options,
            )
            for position, gradient in zip(common, reduced, strict=True):
                result[position] = gradient
        return result
