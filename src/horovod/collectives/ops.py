"""How values combine, and the two ways in which scripts say so."""

from __future__ import annotations

from typing import Final

from horovod import _core
from horovod.errors import InvalidArgumentError, deprecated

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "reduce_op"]

# Plain ints: scripts store them, compare them and pass them through other libraries.
Average: Final[int] = _core.AVERAGE
Sum: Final[int] = _core.SUM
Adasum: Final[int] = _core.ADASUM
Min: Final[int] = _core.MIN
Max: Final[int] = _core.MAX
Product: Final[int] = _core.PRODUCT


def reduce_op(op: int | None, average: bool | None) -> int:
    """Combine the two ways to name a reduction; ``average`` is the deprecated one.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
    deprecated("Parameter `average` has been replaced with `op` and will be removed.")
    return Average if average else Sum
