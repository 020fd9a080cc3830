"""Pieces of row groups as arrays: read once where memory allows, transformed, and put together to blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from horovod.data.parquet.plan import Block, Piece
from horovod.data.parquet.rows import ArrayMemory, Arrays, Rows, TransformedRows
from horovod.errors import InvalidArgumentError

__all__ = ["Arrays", "Loading", "RowTransform", "Transform"]

Transform = Callable[[Arrays], Arrays]
RowTransform = Callable[[dict[str, Any]], Mapping[str, Any]]


class _Groups(Protocol):
    """The part of ParquetFiles that is used here."""

    @property
    def name(self) -> str: ...

    @property
    def groups(self) -> Sequence[Any]: ...

    def parts(self, number: int, start: int = 0, stop: int | None = None) -> Iterator[Arrays]: ...


class Loading:
    """Makes blocks. Threads may call it at once.

    Args:
        keep_bytes: after :meth:`keep` row groups stay in memory while all that do take no more; ``None`` =
            all of them.
        spare_bytes: memory of arrays that nobody has any more is kept for the next ones.
        transform, row_transform: applied to pieces every time that they are used, the rows' one first.
    """

    def __init__(
        self,
        files: _Groups,
        keep_bytes: int | None,
        spare_bytes: int,
        transform: Transform | None,
        row_transform: RowTransform | None,
    ) -> None:
        self._files = files
        self._keep_bytes = keep_bytes
        self._memory = ArrayMemory(spare_bytes)
        self._transform = transform
        self._row_transform = row_transform
        self._keeps = False
        self._transforms = transform is not None or row_transform is not None
        self._lock = threading.Lock()
        # Both below are guarded by _lock.
        self._kept: dict[int, Future[Arrays]] = {}
        self._kept_bytes = 0
        # Shape of a row, by column, of the piece that came first: a dict's setdefault is atomic.
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}

    def keep(self) -> None:
        """From now on keep row groups: they will be read again."""
        self._keeps = True

    def begin(self, block: Block) -> Rows | TransformedRows:
        """The rows of a block, of which none has arrived."""
        count = sum(map(len, block.pieces))
        order = None if block.seed is None else np.random.default_rng(block.seed).permutation(count)
        return TransformedRows(order) if self._transforms else Rows(count, order, self._memory)

    def load(self, piece: Piece, first: int, rows: Rows | TransformedRows) -> None:
        """Let the rows of a piece arrive, as those from number ``first`` on.

        Raises:
            ValueError: something in the data has no place in an array, or a transformation returned something
                else than arrays with a row for every row.
        """
        if not self._transforms:
            for number, part in enumerate(self._parts(piece)):
                if number == 0:  # those that follow have the same shapes
                    self._check_shapes(piece, part)
                rows.put(first, part)
                first += _count(part)
            return
        arrays = self._joined(len(piece), self._parts(piece))
        if self._row_transform is not None:
            arrays = _row_by_row(self._row_transform, arrays, len(piece))
        if self._transform is not None:
            arrays = _checked(self._transform(arrays), len(piece))
        self._check_shapes(piece, arrays)
        rows.put(first, arrays)

    def forget(self) -> None:
        """Keep no row group any more."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0
        self._memory.forget()

    def _parts(self, piece: Piece) -> Iterator[Arrays]:
        """The rows of a piece; they may be parts of what is kept."""
        kept = self._kept_group(piece.group)
        if kept is None:
            yield from self._files.parts(piece.group, piece.start, piece.stop)
        else:
            yield {name: values[piece.start : piece.stop] for name, values in kept.items()}

    def _kept_group(self, number: int) -> Arrays | None:
        """A row group that is kept; ``None`` if it is not, and will not be."""
        group = self._files.groups[number]
        with self._lock:
            kept = self._kept.get(number)
            if kept is None:
                full = self._keep_bytes is not None and self._kept_bytes + group.size_bytes > self._keep_bytes
                if not self._keeps or full:
                    return None
                mine: Future[Arrays] = Future()
                self._kept[number] = mine
                self._kept_bytes += group.size_bytes
        if kept is not None:
            return kept.result()  # another thread is reading it, if it is not there yet
        try:
            arrays = self._joined(group.rows, self._files.parts(number))
        except BaseException as error:
            with self._lock:
                self._kept.pop(number, None)
                self._kept_bytes -= group.size_bytes
            mine.set_exception(error)
            raise
        mine.set_result(arrays)
        return arrays

    def _joined(self, count: int, parts: Iterator[Arrays]) -> Arrays:
        rows, first = Rows(count, None, self._memory), 0
        for part in parts:
            rows.put(first, part)
            first += _count(part)
        return rows.arrays()

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


def _count(rows: Arrays) -> int:
    return len(next(iter(rows.values())))


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
