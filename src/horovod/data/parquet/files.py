"""The row groups of Parquet files, and their values as arrays."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pyarrow import fs

from horovod.data.parquet.columns import UnfitValue, to_array
from horovod.data.parquet.filesystems import is_local, resolve
from horovod.errors import DataStoreError, InvalidArgumentError

__all__ = ["ParquetFiles", "RowGroup"]

_FOOTER_READERS = 8
"""Threads that read the ends of files at the start; on an object store each takes some 50 ms."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a decoded value, by the physical type in the file."""


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file.

    Attributes:
        first_row: its number in the file.
        size_bytes: about what the columns that are read take once decoded.
    """

    fragment: ds.ParquetFileFragment
    file: str
    first_row: int
    rows: int
    size_bytes: int


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

    def read(self, number: int) -> dict[str, NDArray[Any]]:
        """The values of a row group, by column.

        Raises:
            ValueError: a column has something that has no place in an array: it, the file and the row are
                named.
            DataStoreError: the file has changed or is gone, or its storage fails.
        """
        group = self.groups[number]
        try:
            table = group.fragment.to_table(
                schema=self._whole_schema,
                columns=self.columns,
                batch_size=group.rows,
                use_threads=False,  # the reader's own threads are what there is
                fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=not self._local),
            )
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(group.file, f"rows from {group.first_row} on", error) from error
        if table.num_rows != group.rows:
            what = f"rows from {group.first_row} on"
            raise _unreadable(
                group.file, what, ValueError(f"{table.num_rows} rows, not {group.rows} as its end has said")
            )
        arrays = {}
        for name, column in zip(self.columns, table.columns, strict=True):
            try:
                arrays[name] = to_array(column)
            except UnfitValue as error:
                raise InvalidArgumentError(_unfit(name, group, error)) from None
        return arrays

    def _groups_of(self, fragment: ds.ParquetFileFragment) -> list[RowGroup]:
        try:
            footer, pieces = fragment.metadata, fragment.split_by_row_group()
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(str(fragment.path), "its end", error) from error
        groups, first_row = [], 0
        for piece in pieces:
            (info,) = piece.row_groups
            if info.num_rows:
                size = _decoded_bytes(footer.row_group(info.id), self.columns)
                groups.append(RowGroup(piece, str(fragment.path), first_row, info.num_rows, size))
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


def _unfit(name: str, group: RowGroup, error: UnfitValue) -> str:
    if error.row is None:
        return f"Column {name!r} {error.reason}: {group.file}. Leave it out, or make numbers of it before."
    where = f"row {group.first_row + error.row} of {group.file}"
    if "null" in error.reason:
        advice = "Fill nulls, or drop such rows, before training (in Spark df.na.fill() and df.na.drop())."
    else:
        advice = "Make all lists of a column equally long before training."
    return f"Column {name!r} {error.reason}: {where}. {advice}"
