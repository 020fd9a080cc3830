"""Pieces of row groups as arrays: read once where memory allows, transformed, and put together to blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from horovod.data.parquet.plan import Block, Piece
from horovod.errors import InvalidArgumentError

__all__ = ["Arrays", "Loading", "RowTransform", "Transform"]

Arrays = dict[str, NDArray[Any]]
Transform = Callable[[Arrays], Arrays]
RowTransform = Callable[[dict[str, Any]], Mapping[str, Any]]


class _Groups(Protocol):
    """The part of ParquetFiles that is used here."""

    @property
    def name(self) -> str: ...

    @property
    def groups(self) -> Sequence[Any]: ...

    def read(self, number: int) -> Arrays: ...


class Loading:
    """Makes blocks. Threads may call it at once.

    Args:
        shuffled: whether rows of blocks are put in another order, for which they are copied.
        keep_bytes: row groups stay in memory while all that do take no more; ``None`` = all of them.
        transform, row_transform: applied to pieces every time that they are used, the rows' one first.
    """

    def __init__(
        self,
        files: _Groups,
        shuffled: bool,
        keep_bytes: int | None,
        transform: Transform | None,
        row_transform: RowTransform | None,
    ) -> None:
        self._files = files
        self._copied_later = shuffled and transform is None and row_transform is None
        self._keep_bytes = keep_bytes
        self._transform = transform
        self._row_transform = row_transform
        self._lock = threading.Lock()
        # Both below are guarded by _lock.
        self._kept: dict[int, Arrays] = {}
        self._kept_bytes = 0
        # Shape of a row, by column, of the piece that came first: a dict's setdefault is atomic.
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}

    def piece(self, piece: Piece) -> Arrays:
        """The rows of a piece.

        Raises:
            ValueError: something in the data has no place in an array, or a transformation returned something
                else than arrays with a row for every row.
        """
        with self._lock:
            arrays = self._kept.get(piece.group)
        shared = arrays is not None
        if arrays is None:
            arrays = self._files.read(piece.group)
            shared = self._keep(piece.group, arrays)
        rows = {name: values[piece.start : piece.stop] for name, values in arrays.items()}
        if shared and not self._copied_later:
            rows = {name: values.copy() for name, values in rows.items()}
        if self._row_transform is not None:
            rows = _row_by_row(self._row_transform, rows, len(piece))
        if self._transform is not None:
            rows = _checked(self._transform(rows), len(piece))
        self._check_shapes(piece, rows)
        return rows

    def block(self, block: Block, pieces: Sequence[Arrays]) -> Arrays:
        """The rows of a block in their order."""
        if {frozenset(each) for each in pieces} != {frozenset(pieces[0])}:
            raise InvalidArgumentError(
                "The transformation returns other columns for some rows than for others."
            )
        if block.seed is None:
            return {name: _joined([each[name] for each in pieces]) for name in pieces[0]}
        order = np.random.default_rng(block.seed).permutation(sum(map(len, block.pieces)))
        return {
            # "clip" leaves out a check of numbers that are a permutation.
            name: np.take(_joined([each[name] for each in pieces]), order, axis=0, mode="clip")
            for name in pieces[0]
        }

    def forget(self) -> None:
        """Keep no row group any more."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0

    def _keep(self, group: int, arrays: Arrays) -> bool:
        size = sum(values.nbytes for values in arrays.values())
        with self._lock:
            if self._keep_bytes is not None and self._kept_bytes + size > self._keep_bytes:
                return False
            if group not in self._kept:
                self._kept[group] = arrays
                self._kept_bytes += size
            return True

    def _check_shapes(self, piece: Piece, rows: Arrays) -> None:
        group = self._files.groups[piece.group]
        where = f"row {group.first_row + piece.start} of {group.file}"
        for name, values in rows.items():
            shape, first = self._shapes.setdefault(name, (values.shape[1:], where))
            if values.shape[1:] != shape:
                raise InvalidArgumentError(
                    f"Column {name!r} has rows of shape {shape} from {first} on, and of {values.shape[1:]} "
                    f"from {where} on. Make all lists of a column equally long before training."
                )


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _row_by_row(transform: RowTransform, rows: Arrays, count: int) -> Arrays:
    made = [transform({name: values[row] for name, values in rows.items()}) for row in range(count)]
    for each in made:
        if not isinstance(each, Mapping) or each.keys() != made[0].keys():
            raise InvalidArgumentError(
                "The transformation of a row must return a dict that has the same columns for every row, "
                f"got {list(each) if isinstance(each, Mapping) else type(each).__name__}."
            )
    try:
        return {name: np.stack([np.asarray(each[name]) for each in made]) for name in made[0]}
    except ValueError as error:
        raise InvalidArgumentError(
            f"The transformation of a row returned values of different shapes for one column: {error}"
        ) from error


def _checked(made: Any, count: int) -> Arrays:
    if not isinstance(made, Mapping) or not made:
        raise InvalidArgumentError(
            f"The transformation must return a dict of arrays by column, got {type(made).__name__}."
        )
    arrays = {name: np.asarray(values) for name, values in made.items()}
    for name, values in arrays.items():
        if values.ndim == 0 or len(values) != count:
            raise InvalidArgumentError(
                f"The transformation got {count} rows and returned column {name!r} of shape {values.shape}: "
                "it must return as many rows as it gets."
            )
    return arrays
