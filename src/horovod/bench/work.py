"""A collective on tensors of one size, and its right result.

Inputs repeat a short pattern. So the right result is computed on the pattern alone: exactly, and at once,
also for many ranks and large tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from horovod.bench.operations import OPERATIONS, REDUCTIONS

__all__ = ["Work", "describe_wrong", "expected", "fill", "make_work", "single"]

_PERIOD: Final = 60
_EXACT_RANKS: Final = 16  # with more, sums no longer fit into the 8 bits that bfloat16 keeps


@dataclass(frozen=True)
class Work:
    """One collective, for any library to carry out again and again.

    Attributes:
        inputs: one-dimensional, contiguous, in host memory; several only where grouped.
        outputs: the place of the result, for libraries that are given one; the inputs themselves where the
            collective works in place.
        op: name of the reduction, "" where nothing is reduced.
        size_bytes: the inputs' bytes, for allgather those of the whole output.
        name: the same on all ranks, and another one for each ``Work`` in flight.
    """

    operation: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    op: str = "sum"
    size_bytes: int = 0
    name: str = "work"

    @property
    def count(self) -> int:
        """Elements of this rank's input."""
        return sum(tensor.numel() for tensor in self.inputs)


def single(operation: str, tensor: torch.Tensor, name: str, op: str = "sum") -> Work:
    """``operation`` on ``tensor``, in place."""
    size_bytes = tensor.numel() * tensor.element_size()
    return Work(operation, (tensor,), (tensor,), op, size_bytes, name)


def make_work(
    operation: str, size_bytes: int, *, ranks: int, dtype: str, op: str, tensors: int = 1, number: int = 0
) -> Work:
    """The work of ``size_bytes``, made larger where ranks or tensors need at least an element each.

    Args:
        tensors: how many tensors a group has; they share the size.
        number: tells works apart that are in flight together.
    """
    kind: torch.dtype = getattr(torch, dtype)
    elements = max(1, size_bytes // kind.itemsize)
    name = f"bench.{operation}.{dtype}.{op}.{size_bytes}.{number}"
    if operation == "barrier":
        return Work(operation, (), (), "", 0, name)
    about = OPERATIONS[operation]
    op = op if about.reduces else ""
    if about.grouped:
        each = max(1, elements // tensors)
        group = tuple(torch.zeros(each, dtype=kind) for _ in range(tensors))
        return Work(operation, group, group, op, each * tensors * kind.itemsize, name)
    if about.in_place:
        return single(operation, torch.zeros(elements, dtype=kind), name, op)
    share = max(1, elements // ranks)
    given = torch.zeros(share * about.inputs(ranks), dtype=kind)
    result = torch.zeros(share * about.outputs(ranks), dtype=kind)
    return Work(operation, (given,), (result,), op, share * ranks * kind.itemsize, name)


def fill(work: Work, rank: int) -> None:
    """Write ``rank``'s pattern into the inputs."""
    for tensor in work.inputs:
        pattern = _pattern(rank, work.op, tensor.dtype).to(tensor.dtype)
        tensor.copy_(_spread(pattern, 0, tensor.numel()))


def expected(work: Work, rank: int, ranks: int) -> tuple[torch.Tensor, ...]:
    """The results that ``rank`` of ``ranks`` must get."""
    if not work.inputs:
        return ()
    dtype, count = work.inputs[0].dtype, work.inputs[0].numel()
    if work.operation in REDUCTIONS:
        sources = [_reduced(work.op, dtype, ranks)]
    else:
        sources = [_pattern(each, "", dtype).to(dtype) for each in range(ranks)]
    pieces = OPERATIONS[work.operation].result(count, rank, ranks)
    whole = torch.cat([_spread(sources[each], first, number) for each, first, number in pieces])
    return (whole,) * len(work.inputs)


def describe_wrong(work: Work, results: tuple[torch.Tensor, ...], rank: int, ranks: int) -> str:
    """The first element that is not what it must be, as a sentence; "" if all are."""
    for got, wanted in zip(results, expected(work, rank, ranks), strict=True):
        flat = got.reshape(-1)
        if flat.shape != wanted.shape:
            return f"{flat.numel()} elements instead of {wanted.numel()}"
        if torch.equal(flat, wanted):
            continue
        distance = (flat.double() - wanted.double()).abs()
        wrong = distance > _tolerance(work.op, wanted.dtype, ranks) * wanted.double().abs()
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            return f"element {index} is {flat[index].item()} instead of {wanted[index].item()}"
    return ""


def _pattern(rank: int, op: str, dtype: torch.dtype) -> torch.Tensor:
    """``rank``'s values, as int64. Small, so that results are exact in every element type."""
    index = torch.arange(_PERIOD)
    if dtype == torch.bool:
        return ((index % 5 + rank) % 3 == 0).long()
    if op == "product":
        return 1 + (index % 2 if rank < 4 else torch.zeros_like(index))
    if op == "adasum" or (op == "average" and not dtype.is_floating_point):
        return index % 7  # equal on all ranks, as the result is
    if op in ("sum", "average"):
        return index % 3 + rank
    return (index + rank) % 5


def _reduced(op: str, dtype: torch.dtype, ranks: int) -> torch.Tensor:
    values = torch.stack([_pattern(rank, op, dtype) for rank in range(ranks)])
    if dtype == torch.bool:
        return values.amax(0).bool() if op in ("sum", "max") else values.amin(0).bool()
    if op in ("average", "adasum"):
        result = values.double().mean(0)
    elif op == "sum":
        result = values.sum(0)
    elif op == "product":
        result = values.prod(0)
    else:
        result = values.amin(0) if op == "min" else values.amax(0)
    return result.to(dtype)


def _tolerance(op: str, dtype: torch.dtype, ranks: int) -> float:
    """The relative tolerance; 0 where the result is exact in any order of summing."""
    if not dtype.is_floating_point:
        return 0.0
    if op not in ("average", "adasum") and ranks <= _EXACT_RANKS:
        return 0.0
    return ranks * torch.finfo(dtype).eps


def _spread(pattern: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """``count`` elements of the repeated pattern, from element ``first`` on."""
    turned = torch.cat([pattern[first % _PERIOD :], pattern[: first % _PERIOD]])
    return turned.repeat(-(-count // _PERIOD))[:count]
