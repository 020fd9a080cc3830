"""Parts of a ``tf.data`` pipeline: level and reason, equal lengths, nothing lost."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from horovod.errors import InvalidArgumentError, NotInitializedError
from horovod.tensorflow.data import Shard, shard


def write(folder: Path, *lengths: int) -> list[str]:
    """Files of that many records: ``FILE.RECORD``."""
    names = [str(folder / f"{number:02d}.rec") for number in range(len(lengths))]
    for number, (name, length) in enumerate(zip(names, lengths, strict=True)):
        with tf.io.TFRecordWriter(name) as file:
            for record in range(length):
                file.write(f"{number}.{record}".encode())
    return names


def content(part: Shard) -> list[Any]:
    return list(part.dataset.as_numpy_iterator())


def dealt(source: Any, size: int, **options: Any) -> list[Shard]:
    return [shard(source, rank=rank, size=size, **options) for rank in range(size)]


@pytest.mark.parametrize(
    ("files", "size", "level", "said"),
    [
        (4, 2, "file", "4 files are 2 for each of 2 ranks"),
        (1, 1, "file", "1 for each"),
        (1, 2, "record", "fewer than 2 ranks"),
        (3, 2, "record", "some of 2 ranks would read 2, others only 1"),
        (17, 2, "file", "8 or 9 for each"),
    ],
)
def test_files_come_before_records_where_that_is_even(
    tmp_path: Path, files: int, size: int, level: str, said: str
) -> None:
    names = write(tmp_path, *[2] * files)
    parts = dealt(names, size)
    assert {part.level for part in parts} == {level}
    assert said in parts[0].reason
    everything = {f"{number}.{record}".encode() for number in range(files) for record in range(2)}
    assert {record for part in parts for record in content(part)} == everything
    if level == "file":
        assert sorted(name for part in parts for name in part.files) == names
    else:
        assert all(part.files == tuple(names) for part in parts)


@pytest.mark.parametrize("level", ["file", "record"])
def test_ranks_have_equally_many_records_whatever_the_remainder(tmp_path: Path, level: str) -> None:
    names = write(tmp_path, 5, 2, 3, 1)
    everything = Counter(f"{n}.{r}".encode() for n, length in enumerate((5, 2, 3, 1)) for r in range(length))

    repeated = dealt(names, 2, level=level)
    assert {len(content(part)) for part in repeated} == {repeated[0].records}
    assert {record for part in repeated for record in content(part)} == set(everything)

    dropped = dealt(names, 2, level=level, remainder="drop")
    assert {len(content(part)) for part in dropped} == {dropped[0].records}
    assert not Counter(record for part in dropped for record in content(part)) - everything

    padded = dealt(names, 2, level=level, remainder="pad")
    assert {len(content(part)) for part in padded} == {padded[0].records} == {repeated[0].records}
    assert Counter(record for part in padded for record, real in content(part) if real) == everything


def test_lengths_are_known_to_those_who_ask_the_dataset(tmp_path: Path) -> None:
    (part, _) = dealt(write(tmp_path, 2, 3), 2)
    assert (part.records, len(part.dataset)) == (3, 3)


def test_patterns_paths_and_datasets_of_names_are_the_same_files(tmp_path: Path) -> None:
    names = write(tmp_path, 1, 1)
    wanted = content(shard(names, rank=1, size=2))
    assert wanted == [b"1.0"]
    for source in (
        f"{tmp_path}/*.rec",
        [f"{tmp_path}/00*", f"{tmp_path}/01*"],
        [Path(name) for name in reversed(names)],
        tmp_path / "*.rec",
    ):
        assert content(shard(source, rank=1, size=2)) == wanted
    listed = tf.data.Dataset.list_files(names)
    assert content(shard(listed, reader=tf.data.TFRecordDataset, rank=1, size=2)) == wanted


def test_another_reader_reads_other_files(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
    part = shard(f"{tmp_path}/*.txt", reader=tf.data.TextLineDataset, rank=1, size=2)
    assert (part.level, content(part)) == ("file", [b"1a", b"1b"])


def test_elements_of_a_dataset_are_dealt_out_with_their_structure() -> None:
    source = tf.data.Dataset.range(5).map(lambda x: {"x": x, "y": (2 * x, 3 * x)})
    first, second = dealt(source, 2, remainder="pad")
    assert (first.level, first.records, first.files) == ("record", 3, ())
    assert [(element["x"], real) for element, real in content(second)] == [(1, True), (3, True), (0, False)]
    assert content(first)[1] == ({"x": 2, "y": (4, 6)}, True)


def test_more_ranks_than_records_get_records_again() -> None:
    parts = dealt(tf.data.Dataset.range(2), 5)
    assert [content(part) for part in parts] == [[0], [1], [0], [1], [0]]


def test_an_endless_shard_needs_no_counting(tmp_path: Path) -> None:
    by_file = shard(write(tmp_path, 1, 2), remainder="endless", rank=1, size=2)
    assert list(by_file.dataset.take(5).as_numpy_iterator()) == [b"1.0", b"1.1", b"1.0", b"1.1", b"1.0"]
    by_record = shard(tf.data.Dataset.range(3), remainder="endless", rank=1, size=2)
    assert list(by_record.dataset.take(4).as_numpy_iterator()) == [1, 0, 2, 1]
    already = shard(tf.data.Dataset.range(4).repeat(), rank=1, size=2)
    assert list(already.dataset.take(3).as_numpy_iterator()) == [1, 3, 1]
    assert [part.records for part in (by_file, by_record, already)] == [None] * 3


def test_given_numbers_of_records_are_not_counted(tmp_path: Path) -> None:
    names = write(tmp_path, 2, 3)
    part = shard(names, records=dict(zip(names, (2, 3), strict=True)), rank=0, size=2)
    assert (part.records, content(part)) == (3, [b"0.0", b"0.1", b"0.0"])
    unknown = tf.data.Dataset.range(10).filter(lambda x: x % 2 == 0)
    assert content(shard(unknown, records=5, rank=1, size=2, remainder="drop")) == [2, 6]


def test_a_wrong_number_of_records_is_noticed_when_reading() -> None:
    unknown = tf.data.Dataset.range(4).filter(lambda x: x % 2 == 0)
    part = shard(unknown, records=4, rank=0, size=1)
    with pytest.raises(tf.errors.FailedPreconditionError, match="Input dataset was expected to contain 4"):
        content(part)


def test_graphs_need_the_number_of_records(tmp_path: Path) -> None:
    names = write(tmp_path, 2, 2)
    with tf.Graph().as_default():
        with pytest.raises(InvalidArgumentError, match="cannot be counted"):
            shard(names, rank=0, size=2)
        part = shard(names, records=dict.fromkeys(names, 2), rank=1, size=2)
        element = tf.compat.v1.data.make_one_shot_iterator(part.dataset).get_next()
        with tf.compat.v1.Session() as session:
            assert [session.run(element) for _ in range(2)] == [b"1.0", b"1.1"]


def test_the_log_says_level_and_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "horovod"):
        shard(write(tmp_path, 1, 1), rank=1, size=2)
    assert "rank 1 of 2 reads by file (2 files are 1 for each of 2 ranks): 1 records" in caplog.text


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (b"name", {}, "got bytes"),
        (7, {}, "got int"),
        ([1, 2], {}, "got int"),
        ([], {}, "no files"),
        ("nothing-here-*.rec", {}, "No file matches"),
        (["a", "b", "a"], {}, "'a' is given twice"),
        (["a"], {"level": "file"}, "too few for 2 ranks"),
        (["a"], {"level": "batch"}, "'auto', 'file', 'record'"),
        (["a"], {"remainder": "throw"}, "'endless'"),
        (["a"], {"records": 3}, "map the name"),
        (["a", "b"], {"records": {"a": 1}}, "nothing about 'b'"),
        (["a", "b"], {"records": {"a": 1, "b": 0}}, "The files of rank 1 hold no records"),
        (["a", "b"], {"records": {"a": 1, "b": 0}, "remainder": "drop"}, "rank 1 would have none"),
        (["a", "b"], {"reader": lambda name: tf.data.Dataset.range(2).repeat()}, "never end"),
    ],
)
def test_what_makes_no_sense_is_refused(source: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        shard(source, rank=0, size=2, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "file"}, "does not tell its files"),
        ({"records": {"a": 1}}, "number of elements"),
        ({"records": -1}, "number of elements"),
        ({"rank": None}, "both rank and size"),
        ({"rank": 2}, "no rank 2"),
    ],
)
def test_a_dataset_is_refused_with_what_only_files_have(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        shard(tf.data.Dataset.range(4), **{"rank": 0, "size": 2, **options})


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no samples"):
        shard(tf.data.Dataset.range(0), rank=0, size=1)


def test_the_place_of_this_process_is_asked_of_the_world() -> None:
    with pytest.raises(NotInitializedError):
        shard(tf.data.Dataset.range(4))
