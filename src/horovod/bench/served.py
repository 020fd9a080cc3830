"""Operations and types that the compared libraries can do, and their names for them."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.bench.operations import REDUCTIONS

__all__ = ["GLOO_OPS", "MPI_OPS", "MPI_TYPES", "unserved"]

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
