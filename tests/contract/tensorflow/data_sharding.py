"""Sharing data out: every rank asks for its own part, and they agree on what they see."""

from __future__ import annotations

import tempfile
from collections import Counter

import pytest
import tensorflow as tf
from tests.contract.world import Cases

import horovod.tensorflow as hvd
from horovod.errors import MismatchError
from horovod.tensorflow.data import shard

CASES = Cases()


def write(folder: str, *lengths: int) -> None:
    for number, length in enumerate(lengths):
        with tf.io.TFRecordWriter(f"{folder}/{number}.rec") as file:
            for record in range(length):
                file.write(f"{number}.{record}".encode())


@CASES.add
def parts_of_all_ranks_are_the_whole() -> None:
    with tempfile.TemporaryDirectory() as mine:
        folder = hvd.broadcast_object(mine)
        lengths = range(1, 2 * hvd.size() + 1)
        if hvd.rank() == 0:
            write(folder, *lengths)
        everything = Counter(f"{n}.{r}".encode() for n, length in enumerate(lengths) for r in range(length))
        hvd.allgather_object("written")
        for level in ("file", "record"):
            part = shard(f"{folder}/*.rec", level=level, remainder="pad")
            told = hvd.allgather_object((part.records, list(part.dataset.as_numpy_iterator())))
            assert len({records for records, _ in told}) == 1
            assert {len(elements) for _, elements in told} == {part.records}
            real = Counter(record for _, elements in told for record, counts in elements if counts)
            assert real == everything, level
        hvd.allgather_object("read")


@CASES.add
def other_files_on_a_rank_are_told_to_all() -> None:
    if hvd.size() == 1:
        return
    with tempfile.TemporaryDirectory() as folder:  # of one's own: other names
        write(folder, *[1] * (hvd.size() + hvd.rank()))
        with pytest.raises(MismatchError, match="different files") as raised:
            shard(f"{folder}/*.rec", level="file")
        assert raised.value.said[:2] == (f"{hvd.size()} files", f"{hvd.size() + 1} files")
        with pytest.raises(MismatchError, match="different files"):
            shard(f"{folder}/*.rec", level="record", remainder="endless")


@CASES.add
def datasets_of_other_lengths_are_told_to_all() -> None:
    if hvd.size() == 1:
        return
    with pytest.raises(MismatchError, match=r"different lengths \(rank 0: 5, rank 1: 6"):
        shard(tf.data.Dataset.range(5 + hvd.rank()))
    part = shard(tf.data.Dataset.range(2 * hvd.size()))
    assert list(part.dataset.as_numpy_iterator()) == [hvd.rank(), hvd.size() + hvd.rank()]


@CASES.add
def members_of_a_set_share_among_themselves() -> None:
    if hvd.size() < 3:
        return
    members = hvd.add_process_set([0, hvd.size() - 1])
    if members.included():
        part = shard(tf.data.Dataset.range(3), process_set=members)
        assert (part.rank, part.size, part.records) == (members.rank(), 2, 2)
    hvd.remove_process_set(members)
