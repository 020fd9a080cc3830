"""Collectives that the tool measures: calls, inputs and right results, here and in the compared libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = [
    "BUS_FACTORS",
    "GLOO_OPS",
    "MPI_OPS",
    "MPI_TYPES",
    "OPERATIONS",
    "REDUCTIONS",
    "Operation",
    "unserved",
]

Pieces: TypeAlias = list[tuple[int, int, int]]
"""A result in consecutive pieces: rank whose input it is of (0: the reduction of all inputs), first element
there, number of elements."""

BUS_FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
    "(n-1)/n": lambda n: (n - 1) / n,
    "1": lambda n: 1.0,
    "0": lambda n: 0.0,
}
"""By how they are written, of the number of ranks."""


def _all_of_the_first(count: int, rank: int, ranks: int) -> Pieces:
    return [(0, 0, count)]


@dataclass(frozen=True)
class Operation:
    """One collective.

    Attributes:
        bus: one of ``BUS_FACTORS``.
        gloo: takes ``torch.distributed``, input, output and root; returns the function and its arguments.
        mpi: name of the function in MPI.
        reduces: takes a reduction, by default any but those in ``without``.
        without: reductions that it does not have.
        in_place: the result replaces the input, which has its size.
        rooted: takes a root.
        grouped: takes several tensors. Libraries without groups carry out each tensor alone.
        inputs, outputs: sizes where it is not in place, in shares of a rank; of the number of ranks.
        result: of the number of elements of the input, the rank and the number of ranks.
    """

    bus: str
    gloo: Callable[[Any, Any, Any, int], tuple[Callable[..., Any], list[Any]]] | None = None
    mpi: str = ""
    reduces: bool = False
    without: tuple[str, ...] = ()
    in_place: bool = False
    rooted: bool = False
    grouped: bool = False
    inputs: Callable[[int], int] = lambda ranks: ranks
    outputs: Callable[[int], int] = lambda ranks: ranks
    result: Callable[[int, int, int], Pieces] = _all_of_the_first


def _reduce_scatter(dist: Any, given: Any, result: Any, root: int) -> tuple[Callable[..., Any], list[Any]]:
    # Newer versions of PyTorch have another name for it, and warn of the old one.
    name = "reduce_scatter_single"
    return getattr(dist, name if hasattr(dist, name) else "reduce_scatter_tensor"), [result, given]


OPERATIONS: Final[Mapping[str, Operation]] = {
    "allreduce": Operation(
        "2(n-1)/n",
        lambda dist, given, result, root: (dist.all_reduce, [given]),
        "allreduce",
        reduces=True,
        in_place=True,
    ),
    "grouped_allreduce": Operation(
        "2(n-1)/n", reduces=True, without=("adasum",), in_place=True, grouped=True
    ),
    "allgather": Operation(
        "(n-1)/n",
        lambda dist, given, result, root: (dist.all_gather, [list(result.split(len(given))), given]),
        "allgather",
        inputs=lambda ranks: 1,
        result=lambda count, rank, ranks: [(each, 0, count) for each in range(ranks)],
    ),
    "broadcast": Operation(
        "1",
        lambda dist, given, result, root: (dist.broadcast, [given, root]),
        "bcast",
        in_place=True,
        rooted=True,
    ),
    "alltoall": Operation(
        "(n-1)/n",
        lambda dist, given, result, root: (dist.all_to_all_single, [result, given]),
        "alltoall",
        result=lambda count, rank, ranks: [
            (each, rank * (count // ranks), count // ranks) for each in range(ranks)
        ],
    ),
    "reducescatter": Operation(
        "(n-1)/n",
        _reduce_scatter,
        "reduce_scatter_block",
        reduces=True,
        without=("min", "max", "product", "adasum"),
        outputs=lambda ranks: 1,
        result=lambda count, rank, ranks: [(0, rank * (count // ranks), count // ranks)],
    ),
    "barrier": Operation("0", lambda dist, given, result, root: (dist.barrier, []), "barrier", in_place=True),
}

REDUCTIONS: Final = tuple(name for name, operation in OPERATIONS.items() if operation.reduces)


GLOO_OPS: Mapping[str, str] = {"sum": "SUM", "min": "MIN", "max": "MAX", "product": "PRODUCT"}
_GLOO_TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8")

MPI_OPS: Mapping[str, str] = {"sum": "SUM", "min": "MIN", "max": "MAX", "product": "PROD"}
MPI_TYPES: Mapping[str, str] = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "int8": "INT8_T",
    "int16": "INT16_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
    "uint8": "UINT8_T",
    "uint16": "UINT16_T",
}


def unserved(library: str, operation: str, dtype: str, op: str) -> str:
    """Say why ``library`` cannot do this, "" if it can."""
    if operation == "barrier":
        return ""
    ops, types = (GLOO_OPS, _GLOO_TYPES) if library == "gloo" else (MPI_OPS, tuple(MPI_TYPES))
    if operation in REDUCTIONS:
        if op not in ops:
            return f"{library} has no {op}; it has {', '.join(ops)}"
    elif library == "mpi" or dtype == "bool":
        return ""  # bytes of any type
    if dtype not in types:
        return f"{library} has no {operation} of {dtype}; it has {', '.join(types)}"
    return ""
