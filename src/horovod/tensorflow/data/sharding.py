"""Each rank's part of a ``tf.data`` pipeline: by whole files where that is even, else record by record.

By file every rank opens only its own files. By record every rank reads everything and keeps every
``size``-th record: right for any number of files, but reading takes as long as for one process.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import tensorflow as tf

from horovod.collectives.numpy_frontend import collectives
from horovod.data.sharding import REMAINDERS, check_choice, common_count, place
from horovod.errors import InvalidArgumentError, MismatchError
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["Shard", "shard"]

_log = logging.getLogger("horovod")

FILES_ENOUGH: Final = 8
"""From so many files per rank on, one more for some ranks makes little difference: an eighth at most."""

FILES_AT_ONCE: Final = 4
"""Files that a rank reads in turn. A constant: the order of records must not depend on the machine."""

ENDLESS: Final = "endless"
LEVELS: Final = ("auto", "file", "record")


@dataclass(frozen=True)
class Shard:
    """Shard of the data that one rank trains on, and the way it was found.

    Attributes:
        dataset: this rank's records, in an order that only the arguments decide. Shuffle, map and batch it.
        level: ``"file"`` if ranks read different files, ``"record"`` if all read everything.
        reason: why that level, in words.
        files: what this rank reads, in order; empty if the source was a dataset.
        records: elements of ``dataset``, the same number on every rank; None if it never ends.
        rank, size: whose shard, of how many.
    """

    dataset: Any
    level: str
    reason: str
    files: tuple[str, ...]
    records: int | None
    rank: int
    size: int


def shard(
    source: Any,
    *,
    reader: Callable[[Any], Any] | None = None,
    level: str = "auto",
    remainder: str = "repeat",
    records: int | Mapping[str, int] | None = None,
    rank: int | None = None,
    size: int | None = None,
    process_set: ProcessSet | None = None,
) -> Shard:
    """Return this rank's part of ``source``, with as many records as every other rank's part.

    To see that the parts are equally long the records are counted once, here, unless ``tf.data`` knows their
    number or ``records`` says it. For more data than one wants to read twice: ``remainder="endless"``.

    Without ``rank`` and ``size`` this is a collective call: ranks tell each other what they have counted.

    Args:
        source: name or pattern (``*``, ``?``, ``[]``) of files, or several of them; or a ``tf.data.Dataset``,
            whose elements are shared out. With a ``reader``, elements of a dataset are names of files.
        reader: makes a dataset of the records of a file, given its name as a string tensor; by default
            ``tf.data.TFRecordDataset``. Must give them in the same order on every rank.
        level: ``"file"`` or ``"record"`` instead of the choice that :class:`Shard` tells.
        remainder: what becomes of records that do not divide evenly:
            ``"repeat"`` nothing is lost, ranks that lack records get some a second time;
            ``"drop"`` none comes twice, ranks that have more leave the rest out;
            ``"pad"`` as ``"repeat"``, and elements become ``(element, real)``; the bool tensor ``real``
            is False for what only fills the shard;
            ``"endless"`` the shard starts again whenever it ends; say yourself how many steps an epoch has.
        records: how many elements the dataset has; for files: of each file, by its name.
        rank, size: of which shard; by default those of this process.
        process_set: share out among its members instead of all ranks.

    Raises:
        ValueError: an argument makes no sense; no such files; no records, or too few for every rank.
        MismatchError: ranks see different files, or not the same records in a dataset.
        NotInitializedError: ``init()`` has not been called, and ``rank`` and ``size`` are not given.
    """
    own_world = rank is None
    rank, size = place(rank, size, process_set)
    check_choice("level", level, LEVELS)
    check_choice("remainder", remainder, (*REMAINDERS, ENDLESS))
    names = _file_names(source, reader)
    level, reason = _level(level, names, size)
    reader = reader or tf.data.TFRecordDataset
    if names and remainder != ENDLESS:
        _refuse_endless(reader(tf.constant(names[0])))
    agree = _Agreement(names, process_set) if own_world and size > 1 else None
    files: Sequence[str] = names or ()
    length: int | None
    if level == "file":
        files = files[rank::size]
        shares = [_read((names or ())[each::size], reader) for each in range(size)]
        dataset, length = _by_file(shares, rank, remainder, _in_shares(records, names or (), size), agree)
    else:
        whole = source if names is None else _read(names, reader)
        dataset, length = _by_record(whole, rank, size, remainder, _in_all(records, names), agree)
    told = "endless" if length is None else f"{length} records for every rank"
    _log.info("rank %d of %d reads by %s (%s): %s", rank, size, level, reason, told)
    return Shard(dataset, level, reason, tuple(files), length, rank, size)


# -- what is shared out -------------------------------------------------------------------------------------


def _file_names(source: Any, reader: Callable[[Any], Any] | None) -> list[str] | None:
    """The names in ``source`` in the order that all ranks share; None if it is a dataset of records."""
    if isinstance(source, tf.data.Dataset):
        if reader is None:
            return None
        if not tf.executing_eagerly():
            raise InvalidArgumentError("Outside of eager mode give the names of the files as a list.")
        given = [os.fsdecode(name.numpy()) for name in source]
    elif isinstance(source, str | os.PathLike):
        given = [os.fspath(source)]
    elif isinstance(source, Iterable) and not isinstance(source, bytes | Mapping):
        given = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in source]
    else:
        given = [source]
    names: list[str] = []
    for each in given:
        if not isinstance(each, str):
            raise InvalidArgumentError(
                "shard() takes a tf.data.Dataset, or names or patterns of files, as text or paths; got "
                f"{type(each).__name__}. For arrays see horovod.data.shard_indices."
            )
        found = tf.io.gfile.glob(each) if any(sign in each for sign in "*?[") else [each]
        if not found:
            raise InvalidArgumentError(f"No file matches {each!r}.")
        names += found
    if not names:
        raise InvalidArgumentError("There are no files to share out.")
    names.sort()
    for one, other in pairwise(names):
        if one == other:
            raise InvalidArgumentError(f"{one!r} is given twice: its records would come twice.")
    return names


def _level(wanted: str, names: Sequence[str] | None, size: int) -> tuple[str, str]:
    """Level and reason. By file if ranks get equally many files, or so many that one more hardly counts."""
    if names is None:
        if wanted == "file":
            raise InvalidArgumentError(
                "A dataset of records does not tell its files: to shard by file give names and a reader."
            )
        return "record", "the source is a dataset, which does not tell its files"
    each, rest = divmod(len(names), size)
    if wanted == "file" and not each:
        raise InvalidArgumentError(
            f"{len(names)} files are too few for {size} ranks to read one each. Use level='record'."
        )
    if wanted != "auto":
        return wanted, "as was asked for"
    if not each:
        return "record", f"{len(names)} files are fewer than {size} ranks"
    if not rest:
        return "file", f"{len(names)} files are {each} for each of {size} ranks"
    if each >= FILES_ENOUGH:
        return "file", f"{len(names)} files are {each} or {each + 1} for each of {size} ranks"
    return "record", f"of {len(names)} files some of {size} ranks would read {each + 1}, others only {each}"


def _read(names: Sequence[str], reader: Callable[[Any], Any]) -> Any:
    """The records of some files, in an order that only the arguments decide."""
    return tf.data.Dataset.from_tensor_slices(list(names)).interleave(
        reader,
        cycle_length=min(len(names), FILES_AT_ONCE),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


# -- how many records there are -----------------------------------------------------------------------------


def _in_all(records: int | Mapping[str, int] | None, names: Sequence[str] | None) -> int | None:
    """Count all records by what ``records`` says."""
    if names is not None:
        known = _in_shares(records, names, 1)
        return None if known is None else known[0]
    if records is None or (isinstance(records, int) and not isinstance(records, bool) and records >= 0):
        return records
    raise InvalidArgumentError(f"records must be the number of elements of the dataset, got {records!r}.")


def _in_shares(records: int | Mapping[str, int] | None, names: Sequence[str], size: int) -> list[int] | None:
    """Count the records in each rank's files by what ``records`` says of each file."""
    if records is None:
        return None
    if not isinstance(records, Mapping):
        raise InvalidArgumentError("For files, records must map the name of each to its number of records.")
    if missing := [name for name in names if name not in records]:
        raise InvalidArgumentError(f"records says nothing about {missing[0]!r}.")
    return [sum(int(records[name]) for name in names[rank::size]) for rank in range(size)]


def _endless(dataset: Any) -> bool:
    return bool(tf.executing_eagerly() and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY)


def _refuse_endless(of_a_file: Any) -> None:
    if _endless(of_a_file):
        raise InvalidArgumentError("The reader's datasets never end: use remainder='endless'.")


def _count(dataset: Any) -> int:
    """Count the elements of ``dataset``, by reading all if need be."""
    if not tf.executing_eagerly():
        raise InvalidArgumentError(
            "Outside of eager mode records cannot be counted: give their number (records=), or "
            "remainder='endless'."
        )
    known = int(dataset.cardinality())
    return known if known >= 0 else int(dataset.reduce(np.int64(0), lambda count, _: count + 1))


class _Agreement:
    """Agreement of the ranks on their data: all of them raise if they do not see the same."""

    def __init__(self, names: Sequence[str] | None, process_set: ProcessSet | None) -> None:
        self._files = zlib.crc32("\n".join(names or ()).encode())
        self._number = len(names or ())
        self._set = process_set or global_process_set

    def counts(self, mine: int) -> list[int]:
        """Return every rank's ``mine``.

        Raises:
            MismatchError: ranks have different files.
        """
        said = np.array([[self._files, self._number, mine]], np.int64)
        rows = collectives.run_allgather(said, "data.shard", self._set).tolist()
        if any(row[:2] != rows[0][:2] for row in rows):
            seen = ", ".join(f"rank {rank}: {row[1]}" for rank, row in enumerate(rows))
            raise MismatchError(
                f"Ranks see different files (how many each sees: {seen}), so their shards would overlap or "
                "leave records out. Give every rank the same names, on storage that all of them reach.",
                ranks=range(len(rows)),
                said=[f"{row[1]} files" for row in rows],
            )
        return [row[2] for row in rows]


# -- one rank's part ----------------------------------------------------------------------------------------


def _by_file(
    shares: Sequence[Any], rank: int, remainder: str, known: list[int] | None, agree: _Agreement | None
) -> tuple[Any, int | None]:
    """``shares[rank]``, made as long as the others, and its length."""
    mine = shares[rank]
    if remainder == ENDLESS:
        if agree:
            agree.counts(0)
        return mine.repeat(), None
    if agree:
        counts = agree.counts(_count(mine) if known is None else known[rank])
    else:
        counts = known or [_count(share) for share in shares]
    if min(counts) == 0 and remainder != "drop" and any(counts):
        raise InvalidArgumentError(
            f"The files of rank {counts.index(0)} hold no records, those of others do. Use level='record'."
        )
    length = common_count(counts, remainder)
    filled = mine if counts[rank] >= length else mine.repeat()
    return _ended(filled.take(length), length, remainder, lambda index: index < counts[rank]), length


def _by_record(
    whole: Any, rank: int, size: int, remainder: str, known: int | None, agree: _Agreement | None
) -> tuple[Any, int | None]:
    """Every ``size``-th element of ``whole``, made as many as others have, and their number."""
    total = known
    if remainder == ENDLESS or _endless(whole):
        total = None
    elif known is None:
        total = _count(whole)
    if agree:
        counts = agree.counts(-1 if total is None else total)
        if len(set(counts)) > 1:
            seen = ", ".join(f"rank {each}: {count}" for each, count in enumerate(counts))
            raise MismatchError(
                f"Ranks have datasets of different lengths ({seen}); sharding by record needs the same "
                "one on every rank. Is it sharded already, or does it filter at random?",
                ranks=range(len(counts)),
                said=[f"{count} records" for count in counts],
            )
    if total is None:  # repeated before it is shared out, so no shard can be empty
        return whole.repeat().shard(size, rank), None
    length = common_count([total // size + (each < total % size) for each in range(size)], remainder)
    filled = whole if length * size <= total else whole.repeat()
    dealt = filled.take(length * size).shard(size, rank)
    return _ended(dealt, length, remainder, lambda index: index * size + rank < total), length


def _ended(dataset: Any, length: int, remainder: str, real: Callable[[Any], Any]) -> Any:
    """``dataset`` with its length set, and with marks if it is padded."""
    if remainder == "pad":
        dataset = dataset.enumerate().map(lambda index, element: (element, real(index)))
    return dataset.apply(tf.data.experimental.assert_cardinality(length))
