"""Reductions, by which values combine, and the two ways in which scripts name them."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Final

from horovod import _core
from horovod.errors import InvalidArgumentError, deprecated

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "checked_op", "name_of_op", "reduce_op"]

# Plain ints: scripts store them, compare them and pass them through other libraries.
Average: Final[int] = _core.AVERAGE
Sum: Final[int] = _core.SUM
Adasum: Final[int] = _core.ADASUM
Min: Final[int] = _core.MIN
Max: Final[int] = _core.MAX
Product: Final[int] = _core.PRODUCT

_NAMES: Final = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}
_MEANT: Final = {"mean": "Average", "avg": "Average", "add": "Sum", "prod": "Product"} | {
    name.lower(): name for name in _NAMES.values()
}

_BOOLS: Final = frozenset({"bool", "bool_"})  # of Python and NumPy


def name_of_op(op: int) -> str:
    """Name of a reduction as scripts write it, for messages."""
    return _NAMES[op]


def checked_op(op: Any) -> int:
    """``op`` as the core takes it. Others would be taken for integers: ``ReduceOp.SUM`` of PyTorch is 0,
    which is ``Average`` here.

    Raises:
        ValueError: it is none of the constants above.
    """
    if isinstance(op, Integral) and op in _NAMES:
        return int(op)
    meant = _MEANT.get(str(op).rpartition(".")[2].lower())
    raise InvalidArgumentError(
        f"op={op!r} is no reduction. There are {', '.join(f'hvd.{name}' for name in _NAMES.values())}"
        + (f": write op=hvd.{meant}." if meant else ".")
    )


def reduce_op(op: int | None, average: bool | None) -> int:
    """Combine the two ways to name a reduction; ``average`` is the deprecated one.

    Raises:
        ValueError: both are given; ``op`` is no reduction, or ``average`` is neither True nor False.
    """
    if average is None:
        if op is None:
            return Average
        # The core looks at plain integers.
        return op if op.__class__ is int else checked_op(op)
    if op is not None:
        raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
    if type(average).__name__ not in _BOOLS:
        # `allreduce(tensor, hvd.Sum)`: Sum is 1, which is true, and so would be an average.
        raise InvalidArgumentError(
            f"average={average!r} is neither True nor False. A reduction is named by op, as in op=hvd.Sum; "
            "the argument that comes before it is average."
        )
    deprecated("Parameter `average` has been replaced with `op` and will be removed.")
    return Average if average else Sum
