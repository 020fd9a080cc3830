"""Random jobs: what every rank does, drawn from a seed, and what must come of it, from plain NumPy.

All ranks draw the same plan, so each knows what the others do and what it has to get itself. A plan is a list
of steps; the operations of a step are submitted by every rank in an order of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

INTEGERS = ("uint8", "int8", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCTIONS = ("Average", "Sum", "Min", "Max", "Product")
KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reduce", "reducescatter")
GROUPED = ("allreduce", "allgather", "reduce", "reducescatter")
OF_ALL_OPERATORS = ("allreduce", "reduce")
REDUCING = (*OF_ALL_OPERATORS, "reducescatter")


@dataclass(frozen=True)
class Tensor:
    """What one rank submits of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    op: str = "Sum"
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    splits: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Operation:
    """One submission of every member of a set: ``said[rank]`` are its tensors, several in a group."""

    name: str
    kind: str
    members: tuple[int, ...]
    said: dict[int, tuple[Tensor, ...]]
    grouped: bool = False
    disagreement: str = ""  # what was made to differ; empty: nothing
    in_place: bool = False


@dataclass(frozen=True)
class Traffic:
    """Operations that are under way together."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Joining:
    """``first`` join at once; the others reduce and try to gather, then join too."""

    first: tuple[int, ...]
    operations: tuple[Operation, ...]  # of the others; the ranks in `first` take part with zeros


@dataclass(frozen=True)
class Sets:
    """Process sets that are removed (by their members), then those that are added."""

    removed: tuple[tuple[int, ...], ...]
    added: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Misuse:
    """What one rank tries, and must be told at once, without effect on the others."""

    rank: int
    what: str


Step = Traffic | Joining | Sets | Misuse
MISUSES = ("not contiguous", "root outside", "bad splits", "duplicate name", "scalar reducescatter")


class Planner:
    """Draws a plan.

    Args:
        seed: the same seed and size give the same plan everywhere.
        size: ranks of the world.
        sets: how many process sets there should be beside the world.
    """

    def __init__(self, seed: int, size: int, sets: int) -> None:
        self._random = random.Random(f"{seed}-{size}")
        self._size = size
        self._wanted = min(sets, 2**size - 2)
        self._sets: list[tuple[int, ...]] = []
        self._names = 0

    def steps(self, count: int) -> list[Step]:
        """The first ``count`` steps."""
        steps: list[Step] = [self._change_sets()]
        while len(steps) < count:
            draw = self._random.random()
            if draw < 0.7 or self._size == 1:
                steps.append(Traffic(tuple(self._operation() for _ in range(self._random.randint(1, 8)))))
            elif draw < 0.8:
                steps.append(self._joining())
            elif draw < 0.9:
                steps.append(Misuse(self._random.randrange(self._size), self._random.choice(MISUSES)))
            else:
                steps.append(self._change_sets())
        return steps

    def _change_sets(self) -> Sets:
        gone = tuple(members for members in self._sets if self._random.random() < 0.4)
        self._sets = [members for members in self._sets if members not in gone]
        added: list[tuple[int, ...]] = []
        while len(self._sets) < self._wanted:
            members = tuple(r for r in range(self._size) if self._random.random() < 0.5)
            if members and len(members) < self._size and members not in self._sets:
                self._sets.append(members)
                added.append(members)
        return Sets(gone, tuple(added))

    def _members(self) -> tuple[int, ...]:
        if not self._sets or self._random.random() < 0.3:
            return tuple(range(self._size))
        return self._random.choice(self._sets)

    def _shape(self) -> tuple[int, ...]:
        draw = self._random
        if draw.random() < 0.05:
            return (draw.randint(100_000, 300_000),)  # beyond all small paths
        shape = tuple(draw.choice((1, 2, 3, 5, 7, 17)) for _ in range(draw.randint(1, 3)))
        return (0 if draw.random() < 0.1 else shape[0], *shape[1:])

    def _operation(self, kind: str = "", members: tuple[int, ...] = (), clean: bool = False) -> Operation:
        draw = self._random
        kind = kind or draw.choice(KINDS)
        members = members or self._members()
        self._names += 1
        grouped = kind in GROUPED and not clean and draw.random() < 0.25
        tensors = [self._tensor(kind, members) for _ in range(draw.randint(1, 4) if grouped else 1)]
        if grouped:  # one operator, one pair of factors and one root for all
            like = tensors[0]
            if any(t.dtype in INTEGERS for t in tensors):
                like = replace(like, prescale=1.0, postscale=1.0)
            tensors = [
                replace(t, op=like.op, prescale=like.prescale, postscale=like.postscale, root=like.root)
                for t in tensors
            ]
        said = {rank: tuple(self._own(kind, members, t) for t in tensors) for rank in members}
        disagreement = ""
        if not clean and len(members) > 1 and draw.random() < 0.2:
            rank, which = draw.choice(members), draw.randrange(len(tensors))
            disagreement, other = self._disagree(kind, members, said[rank][which])
            changed = list(said[rank])
            changed[which] = other
            if disagreement in ("operator", "factor", "root") and grouped:
                changed = [
                    replace(
                        t, op=other.op, prescale=other.prescale, postscale=other.postscale, root=other.root
                    )
                    for t in changed
                ]
            said[rank] = tuple(changed)
        in_place = kind in ("allreduce", "broadcast", "reduce") and draw.random() < 0.5
        return Operation(f"op{self._names}", kind, members, said, grouped, disagreement, in_place)

    def _tensor(self, kind: str, members: tuple[int, ...]) -> Tensor:
        draw = self._random
        dtype = draw.choice(INTEGERS + FLOATS)
        tensor = Tensor(dtype, self._shape(), root=draw.choice(members))
        if kind in OF_ALL_OPERATORS:
            tensor = replace(tensor, op=draw.choice(REDUCTIONS))
        if kind == "reducescatter":
            tensor = replace(tensor, op=draw.choice(("Average", "Sum")))
        if kind in REDUCING and dtype in FLOATS and draw.random() < 0.3:
            # Powers of two: scaling is exact in every type.
            tensor = replace(
                tensor, prescale=draw.choice((0.5, 2.0, 0.25)), postscale=draw.choice((1.0, 4.0))
            )
        return tensor

    def _own(self, kind: str, members: tuple[int, ...], tensor: Tensor) -> Tensor:
        """What is each rank's own affair."""
        draw = self._random
        if kind == "allgather":
            return replace(tensor, shape=(draw.randint(0, 6), *tensor.shape[1:]))
        if kind == "alltoall":
            rows = tensor.shape[0] % 50
            if draw.random() < 0.3:
                return replace(tensor, shape=(rows * len(members), *tensor.shape[1:]))
            splits = tuple(draw.randint(0, 4) for _ in members)
            stay = draw.randint(0, 2)  # rows at the end that are sent to nobody
            return replace(tensor, shape=(sum(splits) + stay, *tensor.shape[1:]), splits=splits)
        return tensor

    def _disagree(self, kind: str, members: tuple[int, ...], tensor: Tensor) -> tuple[str, Tensor]:
        draw = self._random
        ways = ["dtype", "shape"]
        if kind in OF_ALL_OPERATORS:
            ways += ["operator", "factor"]
        if kind == "reducescatter":
            ways += ["operator"]
        if kind in ("broadcast", "reduce"):
            ways += ["root"]
        way = draw.choice(ways)
        if way == "dtype":
            others = [dtype for dtype in INTEGERS + FLOATS if dtype != tensor.dtype]
            return way, replace(tensor, dtype=draw.choice(others))
        if way == "shape":
            return way, replace(tensor, shape=(*tensor.shape, 2))
        if way == "operator":
            choices = REDUCTIONS if kind in OF_ALL_OPERATORS else ("Average", "Sum")
            return way, replace(tensor, op=draw.choice([op for op in choices if op != tensor.op]))
        if way == "factor":
            return way, replace(tensor, postscale=tensor.postscale * 3.0)
        return way, replace(tensor, root=draw.choice([rank for rank in members if rank != tensor.root]))

    def _joining(self) -> Joining:
        draw = self._random
        world = tuple(range(self._size))
        first = tuple(sorted(draw.sample(world, draw.randint(1, self._size - 1))))
        kinds = ["allreduce"] + [draw.choice(("allreduce", "allreduce", *KINDS)) for _ in range(3)]
        return Joining(first, tuple(self._operation(kind, world, clean=True) for kind in kinds))


def values(seed: int, operation: Operation, rank: int, which: int) -> Array:
    """What ``rank`` brings: small integers, as int64, exact in every type."""
    tensor = operation.said[rank][which]
    low, high = (0, 6) if tensor.dtype == "uint8" else (-4, 5)
    if tensor.op == "Product":
        low, high = (0, 3) if tensor.dtype == "uint8" else (-2, 3)
    draw = np.random.default_rng([seed, int(operation.name[2:]), rank, which])
    return draw.integers(low, high, size=tensor.shape)


def expected(seed: int, operation: Operation, rank: int, which: int, joined: tuple[int, ...] = ()) -> Array:
    """What ``rank`` must get, as int64 or float64, before it is rounded to the type."""
    members = operation.members
    tensor = operation.said[rank][which]
    brought = [values(seed, operation, member, which) * (0 if member in joined else 1) for member in members]
    place = members.index(rank)
    if operation.kind == "reduce" and rank != tensor.root:
        return brought[place]
    if operation.kind in REDUCING:
        reduced = _reduce(np.stack(brought), tensor)
        if operation.kind in OF_ALL_OPERATORS:
            return reduced
        rows, more = divmod(tensor.shape[0], len(members))
        begin = place * rows + min(place, more)
        return reduced[begin : begin + rows + (place < more)]
    if operation.kind == "allgather":
        return np.concatenate(brought)
    if operation.kind == "broadcast":
        return brought[members.index(tensor.root)]
    blocks = []
    for member, all_rows in zip(members, brought, strict=True):
        splits = splits_of(operation.said[member][which], len(members))
        begin = sum(splits[:place])
        blocks.append(all_rows[begin : begin + splits[place]])
    return np.concatenate(blocks)


def splits_of(tensor: Tensor, members: int) -> tuple[int, ...]:
    """Rows for each member, also where they were not said."""
    return tensor.splits if tensor.splits is not None else (tensor.shape[0] // members,) * members


def _reduce(brought: Array, tensor: Tensor) -> Array:
    floats = tensor.dtype in FLOATS
    scaled = brought * tensor.prescale if floats else brought
    if tensor.op == "Average":
        mean = scaled.sum(0) / len(scaled)
        reduced = mean if floats else np.trunc(mean).astype(np.int64)
    else:
        combine: dict[str, np.ufunc] = {
            "Sum": np.add,
            "Min": np.minimum,
            "Max": np.maximum,
            "Product": np.multiply,
        }
        reduced = combine[tensor.op].reduce(scaled, axis=0)
    return np.asarray(reduced * tensor.postscale if floats else reduced)
