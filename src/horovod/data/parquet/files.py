"""Parquet files on any filesystem: their row groups, and the values of these as arrays."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pyarrow import fs, parquet

from horovod.data.parquet.columns import UnfitValue, to_array
from horovod.errors import DataStoreError, InvalidArgumentError

__all__ = ["ParquetFiles", "RowGroup", "is_local", "resolve"]

_PYARROWS_OWN = {"", "file", "hdfs", "viewfs", "s3", "gs", "gcs"}


def resolve(
    path: str | os.PathLike[str],
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[fs.FileSystem, str]:
    """Return the filesystem and the path on it.

    Args:
        path: with or without a scheme.
        filesystem: one of pyarrow or fsspec, which decides.
        storage_options: for fsspec, which is used if there are any.

    Raises:
        ValueError: no such scheme; its package is not installed; ``filesystem`` is none.
    """
    text = os.fspath(path)
    scheme = text.partition("://")[0] if "://" in text else text.partition(":/")[0] if ":/" in text else ""
    if filesystem is not None:
        return _given(text, filesystem)
    if scheme in _PYARROWS_OWN and (not storage_options or scheme in ("", "file")):
        # Files are not mapped: one that another host makes shorter would end this process by a signal.
        if scheme == "":
            return fs.LocalFileSystem(), os.path.abspath(text)
        if scheme == "file":
            # Of "file:///a" and of "file:/a", which Spark writes.
            return fs.LocalFileSystem(), "/" + text.partition(":")[2].lstrip("/")
        found, inner = fs.FileSystem.from_uri(text)
        return found, inner
    return _by_fsspec(text, scheme, storage_options or {})


def is_local(filesystem: fs.FileSystem) -> bool:
    """Return whether files lie on a disk of this machine, as far as is known."""
    return isinstance(filesystem, fs.LocalFileSystem)


def _given(text: str, filesystem: Any) -> tuple[fs.FileSystem, str]:
    if isinstance(filesystem, fs.FileSystem):
        return filesystem, text.partition("://")[2] if "://" in text else text
    if hasattr(filesystem, "open") and hasattr(filesystem, "_strip_protocol"):
        return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), str(filesystem._strip_protocol(text))
    raise InvalidArgumentError(
        f"filesystem must be one of pyarrow.fs or of fsspec, got {type(filesystem).__name__}."
    )


def _by_fsspec(text: str, scheme: str, options: Mapping[str, Any]) -> tuple[fs.FileSystem, str]:
    try:
        import fsspec
    except ImportError as error:
        raise InvalidArgumentError(
            f"Reading {text} needs fsspec, which is not installed here. Install it: pip install fsspec"
        ) from error
    try:
        found, inner = fsspec.core.url_to_fs(text, **options)
    except ImportError as error:
        raise InvalidArgumentError(f"fsspec cannot open {scheme}:// here: {error}") from error
    except ValueError as error:
        raise InvalidArgumentError(
            f"{text} is on no filesystem that fsspec or pyarrow know: {error}"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), inner


_FOOTER_READERS = 8
"""Threads that read the ends of files at the start; on an object store each takes some 50 ms."""

_PART_BYTES = 2 << 20
"""Values that are decoded at a time. In caches they are put where they belong; and Arrow uses the memory of
one part for the next, where for a whole row group the system clears new pages, for several times its size."""

_READ_BYTES = 64 << 10
"""Of a file on a disk that are read at a time."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a decoded value, by the physical type in the file."""


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file.

    Attributes:
        first_row: its number in the file.
        size_bytes: about what the columns that are read take once decoded.
        as_wanted: whether all these columns are in the file with their types; if not, a folder's name has
            some, or other files have other types.
    """

    fragment: ds.ParquetFileFragment
    file: str
    first_row: int
    rows: int
    size_bytes: int
    as_wanted: bool


class ParquetFiles:
    """A Parquet data set.

    Args:
        path: a folder, a file, or several files; what begins with ``_`` or ``.`` in a folder is not data.
            Folders named ``column=value`` are columns.
        columns: what is read; ``None`` = everything.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: there are no rows, or not all of the columns.
        DataStoreError: the end of a file, which says what is in it, cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        given = [path] if isinstance(path, str | os.PathLike) else list(path)
        if not given:
            raise InvalidArgumentError("No path of Parquet data was given.")
        self.name = os.fspath(given[0]) + (f" and {len(given) - 1} more" if len(given) > 1 else "")
        places = [resolve(each, filesystem, storage_options) for each in given]
        self._local = is_local(places[0][0])
        data = _open(places, self.name)
        self.columns = list(data.schema.names) if columns is None else list(dict.fromkeys(columns))
        missing = [each for each in self.columns if each not in data.schema.names]
        fragments = sorted(data.get_fragments(), key=lambda fragment: str(fragment.path))
        if not fragments:
            raise InvalidArgumentError(f"There are no Parquet files in {self.name}.")
        if missing:
            raise InvalidArgumentError(
                f"{self.name} has no column {', '.join(map(repr, missing))}; "
                f"it has {', '.join(map(repr, data.schema.names))}."
            )
        self._whole_schema = data.schema
        self.schema = pa.schema([data.schema.field(each) for each in self.columns])
        with ThreadPoolExecutor(min(_FOOTER_READERS, len(fragments))) as pool:
            found = pool.map(self._groups_of, fragments)
        self.groups = [group for groups in found for group in groups]
        if not self.groups:
            raise InvalidArgumentError(f"The Parquet files in {self.name} have no rows.")

    def parts(
        self, number: int, start: int = 0, stop: int | None = None
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """The values of rows of a row group, by column: some rows at a time, in their order.

        Args:
            start, stop: the first row, and the one after the last; by default all.

        Raises:
            ValueError: a column has something that has no place in an array: it, the file and the row are
                named.
            DataStoreError: the file has changed or is gone, or its storage fails.
        """
        group = self.groups[number]
        stop = group.rows if stop is None else stop
        shapes: dict[str, tuple[int, ...]] = {}
        first = 0
        for batch in self._batches(group):
            after = first + len(batch)
            if after > start:
                chosen = slice(max(start - first, 0), min(stop - first, len(batch)))
                yield self._arrays(
                    group, first + chosen.start, batch.slice(chosen.start, chosen.stop - chosen.start), shapes
                )
            first = after
            if first >= stop:
                return
        raise _unreadable(
            group.file,
            f"rows from {group.first_row} on",
            ValueError(f"{first} rows, not {group.rows} as its end has said"),
        )

    def _arrays(
        self, group: RowGroup, first: int, batch: pa.RecordBatch, shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, NDArray[Any]]:
        """Rows from ``first`` on as arrays, whose rows have the ``shapes`` of those before."""
        arrays = {}
        for name in self.columns:
            try:
                arrays[name] = to_array(batch.column(name), shapes.get(name))
            except UnfitValue as error:
                raise InvalidArgumentError(_unfit(name, group, first, error)) from None
            shapes[name] = arrays[name].shape[1:]
        return arrays

    def _batches(self, group: RowGroup) -> Iterator[pa.RecordBatch]:
        rows = max(1, _PART_BYTES * group.rows // max(group.size_bytes, 1))
        try:
            if group.as_wanted:
                yield from self._from_file(group, rows)
            else:
                yield from group.fragment.to_batches(
                    schema=self._whole_schema,
                    columns=self.columns,
                    batch_size=rows,
                    use_threads=False,  # the reader's own threads are what there is
                    fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=not self._local),
                )
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(group.file, f"rows from {group.first_row} on", error) from error

    def _from_file(self, group: RowGroup, rows: int) -> Iterator[pa.RecordBatch]:
        """So many rows at a time; a scan of a data set decodes whole row groups."""
        fragment = group.fragment
        with fragment.filesystem.open_input_file(fragment.path) as source:
            file = parquet.ParquetFile(
                source,
                metadata=fragment.metadata,
                pre_buffer=not self._local,
                buffer_size=_READ_BYTES if self._local else 0,
            )
            numbers = [info.id for info in fragment.row_groups]
            yield from file.iter_batches(rows, numbers, columns=self.columns, use_threads=False)

    def _groups_of(self, fragment: ds.ParquetFileFragment) -> list[RowGroup]:
        try:
            footer, pieces = fragment.metadata, fragment.split_by_row_group()
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(str(fragment.path), "its end", error) from error
        there = fragment.physical_schema
        as_wanted = not ds.get_partition_keys(fragment.partition_expression) and all(
            each.name in there.names and there.field(each.name).type == each.type for each in self.schema
        )
        groups, first_row = [], 0
        for piece in pieces:
            (info,) = piece.row_groups
            if info.num_rows:
                size = _decoded_bytes(footer.row_group(info.id), self.columns)
                groups.append(RowGroup(piece, str(fragment.path), first_row, info.num_rows, size, as_wanted))
            first_row += info.num_rows
        return groups


def _open(places: list[tuple[fs.FileSystem, str]], name: str) -> ds.Dataset:
    """The data set at these places, which are on one filesystem."""
    filesystem = places[0][0]
    paths = [inner for _, inner in places]
    if len(paths) == 1 and filesystem.get_file_info(paths[0]).type == fs.FileType.NotFound:
        raise FileNotFoundError(f"There is no {name}.")
    try:
        return ds.dataset(
            paths if len(paths) > 1 else paths[0],
            filesystem=filesystem,
            format=ds.ParquetFileFormat(),
            partitioning="hive",
        )
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"{name} cannot be read as Parquet: {error}") from error


def _decoded_bytes(footer: Any, columns: Iterable[str]) -> int:
    """Of the values of some columns of a row group: lists lie below the name of their column."""
    total = 0
    for index in range(footer.num_columns):
        leaf = footer.column(index)
        if any(leaf.path_in_schema == each or leaf.path_in_schema.startswith(f"{each}.") for each in columns):
            width = _WIDTHS.get(leaf.physical_type)
            total += leaf.total_uncompressed_size if width is None else leaf.num_values * width
    return int(total)


def _unreadable(file: str, what: str, error: Exception) -> DataStoreError:
    said = str(error).rstrip(".")
    return DataStoreError(
        f"Cannot read {file} ({what}) on {socket.gethostname()}: {type(error).__name__}: {said}. It may have "
        "been removed or written anew since the reader was made, or be a part of a file only. Write the data "
        "again, to another place if others still read them, and begin anew.",
        path=file,
    )


def _unfit(name: str, group: RowGroup, first: int, error: UnfitValue) -> str:
    if error.row is None:
        return f"Column {name!r} {error.reason}: {group.file}. Leave it out, or make numbers of it before."
    where = f"row {group.first_row + first + error.row} of {group.file}"
    if "null" in error.reason:
        advice = "Fill nulls, or drop such rows, before training (in Spark df.na.fill() and df.na.drop())."
    else:
        advice = "Make all lists of a column equally long before training."
    return f"Column {name!r} {error.reason}: {where}. {advice}"
