"""Reading Parquet: every row once in an epoch, whatever the number of shards, and errors that say where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

from horovod.data.parquet import ParquetReader, files  # noqa: E402
from horovod.errors import InvalidArgumentError  # noqa: E402


def write(folder: Path, rows: int, group: int = 10, files: int = 2, **more: Any) -> str:
    """Rows 0, 1 ... in several files; of each row ``x`` is its number and ``v`` three numbers from it on."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        columns: dict[str, Any] = {
            "x": part,
            "v": pa.array([[row, row + 1, row + 2] for row in part], pa.list_(pa.float32())),
            **{name: make(part) for name, make in more.items()},
        }
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=group)
    (folder / "_SUCCESS").touch()
    return str(folder)


def read(path: str, **options: Any) -> list[dict[str, NDArray[Any]]]:
    with ParquetReader(path, **{"batch_size": 4, "epochs": 1, **options}) as reader:
        return list(reader)


def column(batches: list[dict[str, NDArray[Any]]], name: str = "x") -> list[Any]:
    return [value for batch in batches for value in batch[name].tolist()]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("rows", "group", "shards"), [(40, 10, 1), (41, 7, 3), (40, 100, 5), (3, 1, 3), (97, 9, 4)]
)
def test_shards_have_every_row_once(
    tmp_path: Path, rows: int, group: int, shards: int, shuffle: bool, workers: int
) -> None:
    path = write(tmp_path / "data", rows, group)
    options = {"shard_count": shards, "shuffle": shuffle, "workers": workers}
    parts = [column(read(path, cur_shard=shard, **options)) for shard in range(shards)]
    together = [row for part in parts for row in part]
    assert sorted(together) == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if not shuffle:
        assert together == list(range(rows))


def test_with_fewer_rows_than_shards_no_shard_is_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 2, files=1)
    for shard in range(5):
        with ParquetReader(path, batch_size=3, cur_shard=shard, shard_count=5, steps=2) as reader:
            assert reader.rows == 1
            assert reader.total_rows == 2
            assert [len(batch["x"]) for batch in reader] == [3, 3]


def test_rows_keep_together_and_have_the_dtypes_of_the_file(tmp_path: Path) -> None:
    for batch in read(write(tmp_path / "data", 50), batch_size=7):
        assert batch["x"].dtype == np.int64
        assert batch["v"].dtype == np.float32
        np.testing.assert_array_equal(batch["v"], batch["x"][:, None] + np.arange(3))
        assert batch["v"].flags.writeable
        assert batch["x"].flags.writeable


@pytest.mark.parametrize("cache", [False, True])
def test_order_follows_the_seed_and_is_another_in_every_epoch(tmp_path: Path, cache: bool) -> None:
    path = write(tmp_path / "data", 60, 10)
    options: dict[str, Any] = {"epochs": 3, "batch_size": 60, "cache": cache}
    first, second, third = (batch["x"].tolist() for batch in read(path, seed=5, **options))
    assert sorted(first) == sorted(second) == sorted(third) == list(range(60))
    assert len({tuple(first), tuple(second), tuple(third), tuple(range(60))}) == 4
    again = [batch["x"].tolist() for batch in read(path, seed=5, workers=0, **options)]
    assert again == [first, second, third]
    assert column(read(path, seed=6, **options)) != first + second + third


def test_rows_of_several_row_groups_are_mixed(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 100, 10, files=1)
    for batch in read(path, batch_size=20):
        assert len({row // 10 for row in batch["x"].tolist()}) > 2


def test_all_shards_together_have_every_row_in_every_epoch_of_an_endless_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 24, 5)
    seen: list[list[int]] = [[], []]
    for shard in range(2):
        with ParquetReader(path, batch_size=4, cur_shard=shard, shard_count=2, steps=3) as reader:
            for each in seen:
                each.extend(column(list(reader)))
    assert [sorted(each) for each in seen] == [list(range(24))] * 2


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the row groups that are read, in their order."""
    numbers: list[int] = []
    parts = files.ParquetFiles.parts

    def noted(self: files.ParquetFiles, number: int, *rows: int) -> Iterator[dict[str, NDArray[Any]]]:
        numbers.append(number)
        return parts(self, number, *rows)

    monkeypatch.setattr(files.ParquetFiles, "parts", noted)
    return numbers


def test_a_cached_shard_has_the_same_rows_in_every_epoch_and_reads_them_once(
    tmp_path: Path, taken: list[int]
) -> None:
    path = write(tmp_path / "data", 40, 5)
    batches = read(path, cache=True, memory_bytes=64, epochs=3, batch_size=10, shard_count=4, cur_shard=1)
    epochs = [sorted(batch["x"].tolist()) for batch in batches]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(taken) == len(set(taken))
    taken.clear()
    read(path, memory_bytes=64, epochs=3, batch_size=10)
    assert len(taken) == 3 * 8  # nothing fits


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_the_loop_writes_to_a_batch_is_not_in_the_next_epoch(tmp_path: Path, shuffle: bool) -> None:
    path = write(tmp_path / "data", 20)
    with ParquetReader(path, batch_size=20, shuffle=shuffle, steps=3, cache=True) as reader:
        for batch in reader:
            assert sorted(batch["x"].tolist()) == list(range(20))
            batch["x"][:] = -1


def test_batches_of_an_endless_reader_are_full_and_loops_go_on(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 10)
    with ParquetReader(path, batch_size=4, shuffle=False, steps=2) as reader:
        assert len(reader) == 2
        assert [column(list(reader)) for _ in range(3)] == [
            [0, 1, 2, 3, 4, 5, 6, 7],
            [8, 9, 0, 1, 2, 3, 4, 5],
            [6, 7, 8, 9, 0, 1, 2, 3],
        ]


def test_loops_that_rewind_have_the_same_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 10)
    with ParquetReader(path, batch_size=4, steps=2, rewind=True) as reader:
        first, second = column(list(reader)), column(list(reader))
    assert first == second
    assert len(set(first)) == 8


def test_loops_over_epochs_begin_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 10)
    with ParquetReader(path, batch_size=4, epochs=1) as reader:
        assert len(reader) == 3
        next(iter(reader))  # a loop that is left early
        one, two = column(list(reader)), column(list(reader))
        assert sorted(one) == sorted(two) == list(range(10))
        assert one != two
    with pytest.raises(TypeError, match="endless"):
        len(ParquetReader(path, batch_size=4))


def test_little_memory_gives_the_same_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 100, 10)
    assert sorted(column(read(path, memory_bytes=4))) == list(range(100))


def test_columns_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 10, text=lambda part: [f"row {row}" for row in part])
    with ParquetReader(path, columns=["text", "x"], batch_size=10, epochs=1) as reader:
        assert reader.columns == reader.schema.names == ["text", "x"]
        (batch,) = reader
    assert list(batch) == ["text", "x"]
    assert batch["text"].tolist() == [f"row {row}" for row in batch["x"].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_transformations_get_rows_and_are_called_in_every_epoch(tmp_path: Path, workers: int) -> None:
    path = write(tmp_path / "data", 20, 5)
    calls: list[int] = []

    def doubled(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        calls.append(len(rows["sum"]))
        rows["sum"] *= 2
        return {"twice": rows["sum"]}

    def summed(row: dict[str, Any]) -> dict[str, Any]:
        row["v"] += 1
        return {"sum": row["v"].sum()}

    with ParquetReader(
        path, batch_size=20, epochs=2, transform=doubled, row_transform=summed, cache=True, workers=workers
    ) as reader:
        for batch in reader:
            assert sorted(batch) == ["twice"]
            assert sorted(batch["twice"].tolist()) == [2 * (3 * row + 6) for row in range(20)]
    assert sum(calls) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": lambda rows: rows["x"]}, "must return a dict of arrays by column, got ndarray"),
        (
            {"transform": lambda rows: {"x": rows["x"][:1]}},
            r"got 10 rows and returned column 'x' of shape \(1,\)",
        ),
        ({"row_transform": lambda row: row["x"]}, "must return a dict that has the same columns"),
        ({"row_transform": lambda row: {"x": np.zeros(row["x"])}}, "different shapes for one column"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_transformation_that_returns_nonsense_is_an_error(
    tmp_path: Path, options: dict[str, Any], message: str, workers: int
) -> None:
    path = write(tmp_path / "data", 20, 10)
    with pytest.raises(InvalidArgumentError, match=message):
        read(path, workers=workers, **options)


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            lambda part: [None if row == 17 else float(row) for row in part],
            "has a null: row 7 of .*part-1.parquet",
        ),
        (
            lambda part: [[1.0, None if row == 13 else 2.0] for row in part],
            "has a null in a list: row 3 of .*part-1.parquet",
        ),
        (
            lambda part: [[1.0] * (3 if row == 16 else 2) for row in part],
            "has lists of 3 values where those before have 2: row 6 of .*part-1.parquet",
        ),
        (
            lambda part: [[1.0] * (2 if row < 15 else 3) for row in part],
            r"has rows of shape \(2,\) from row 0 of .*part-0.parquet on, and of \(3,\) from row 5 of .*-1",
        ),
        (lambda part: [{"a": 1} for _ in part], "has the type struct<a: int64>"),
    ],
)
def test_data_that_fits_in_no_array_is_named(
    tmp_path: Path, values: Any, message: str, workers: int, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each row is decoded by itself."""
    monkeypatch.setattr(files, "_PART_BYTES", part_bytes)
    path = write(tmp_path / "data", 20, 5, bad=values)
    assert len(column(read(path, columns=["x", "v"]))) == 20  # which does not matter if it is not read
    with pytest.raises(InvalidArgumentError, match=f"Column 'bad' {message}"):
        read(path, shuffle=False, workers=workers)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("transform", [None, lambda rows: rows])
def test_rows_are_the_same_however_many_are_decoded_at_a_time(
    tmp_path: Path, shuffle: bool, transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some columns are narrow, and gathered at the end; ``wide`` is put in order as it arrives."""
    path = write(
        tmp_path / "data",
        50,
        20,
        wide=lambda part: [[[row + each] * 4 for each in range(5)] for row in part],
        text=lambda part: [f"row {row}" for row in part],
    )
    options: dict[str, Any] = {"shuffle": shuffle, "transform": transform, "shard_count": 2, "epochs": 2}
    found = []
    for part_bytes in (1, 500, 1 << 20):
        monkeypatch.setattr(files, "_PART_BYTES", part_bytes)
        found.append([read(path, cur_shard=shard, **options) for shard in range(2)])
    for shards in found:
        rows = [batch for batches in shards for batch in batches]
        assert sorted(column(rows)) == sorted([*range(50)] * 2)
        assert [column(batches) for batches in shards] == [column(batches) for batches in found[0]]
        for batch in rows:
            assert batch["text"].tolist() == [f"row {row}" for row in batch["x"]]
            np.testing.assert_array_equal(batch["v"], batch["x"][:, None] + np.arange(3))
            wide = batch["x"][:, None, None] + np.arange(5)[:, None] + np.zeros(4)
            np.testing.assert_array_equal(batch["wide"], wide)


def test_files_that_have_another_type_become_as_the_first(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int64(), pa.int32())):
        pq.write_table(pa.table({"x": pa.array([number], kind)}), tmp_path / f"{number}.parquet")
    (batch,) = read(str(tmp_path))
    assert sorted(batch["x"].tolist()) == [0, 1]
    assert batch["x"].dtype == np.int64


def test_row_groups_are_kept_when_another_loop_shows_that_it_is_of_use(
    tmp_path: Path, taken: list[int]
) -> None:
    path = write(tmp_path / "data", 20, 5)
    with ParquetReader(path, batch_size=5, epochs=1) as reader:
        for reads in (4, 8, 8):
            assert sorted(column(list(reader))) == list(range(20))
            assert len(taken) == reads


def test_a_reader_that_failed_fails_again_and_does_not_skip(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 20, 5, bad=lambda part: [None if row == 0 else 1.0 for row in part])
    with ParquetReader(path, batch_size=4, shuffle=False) as reader:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="has a null"):
                next(iter(reader))


def test_types_become_those_of_numpy(tmp_path: Path) -> None:
    import datetime
    import decimal

    table = pa.table(
        {
            "flag": [True, False, True],
            "small": pa.array([1, 2, 3], pa.int8()),
            "half": pa.array(np.array([1, 2, 3], np.float16)),
            "price": pa.array([decimal.Decimal("1.25")] * 3),
            "day": pa.array([datetime.date(2020, 1, 2)] * 3),
            "time": pa.array([datetime.datetime(2020, 1, 2, 3)] * 3, pa.timestamp("us")),
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
            "matrix": pa.array([[[1, 2], [3, 4], [5, 6]]] * 3, pa.list_(pa.list_(pa.int32()))),
            "fixed": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float64(), 2)),
            "none": pa.array([[]] * 3, pa.list_(pa.float64())),
            "bytes": [b"\0", b"", b"ab"],
        }
    )
    pq.write_table(table, tmp_path / "one.parquet")
    (batch,) = read(str(tmp_path / "one.parquet"), shuffle=False)
    assert batch["flag"].tolist() == [True, False, True]
    assert batch["small"].dtype == np.int8
    assert batch["half"].dtype == np.float16
    assert batch["price"].tolist() == [1.25] * 3
    assert batch["day"][0] == np.datetime64("2020-01-02")
    assert batch["time"][0] == np.datetime64("2020-01-02T03")
    assert batch["kind"].tolist() == ["a", "b", "a"]
    assert batch["matrix"].shape == (3, 3, 2)
    assert batch["matrix"][2].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["fixed"].tolist() == [[1.0, 2.0]] * 3
    assert batch["none"].shape == (3, 0)
    assert batch["bytes"].tolist() == [b"\0", b"", b"ab"]
    assert all(values.flags.writeable for values in batch.values())


def test_folders_that_name_values_are_columns(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for shop in (1, 2):
        write(tmp_path / "data" / f"shop={shop}", 4)
    assert sorted(column(read(str(tmp_path / "data")), "shop")) == [1] * 4 + [2] * 4


def test_several_files_and_a_url_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 10)
    files = sorted(str(each) for each in Path(path).glob("*.parquet"))
    assert column(read(files, shuffle=False)) == list(range(10))  # type: ignore[arg-type]
    assert column(read(f"file://{path}", shuffle=False)) == list(range(10))
    assert column(read(f"file:{path}", shuffle=False)) == list(range(10))


def test_what_fsspec_knows_is_read(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    memory.put(write(tmp_path / "data", 10), "/parquet-reader/", recursive=True)
    try:
        for options in ({}, {"filesystem": memory}):
            assert sorted(column(read("memory://parquet-reader", **options))) == list(range(10))
    finally:
        memory.rm("/parquet-reader", recursive=True)
    from pyarrow import fs

    assert len(read(str(tmp_path / "data"), filesystem=fs.LocalFileSystem())) == 3


def test_data_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 10)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgumentError, match=r"has no column 'y', 'z'; it has 'x', 'v'\."):
        read(path, columns=["x", "y", "z"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match="no Parquet files"):
        read(str(tmp_path / "empty"))
    with pytest.raises(InvalidArgumentError, match="have no rows"):
        read(write(tmp_path / "no rows", 0))
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(InvalidArgumentError, match="cannot be read as Parquet"):
        read(str(tmp_path / "text.parquet"))
    with pytest.raises(InvalidArgumentError, match="no filesystem that fsspec or pyarrow know"):
        read("nothing://folder")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be an integer, got 1.5"),
        ({"cur_shard": 2, "shard_count": 2}, "no shard 2 of 2"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"epochs": 1, "steps": 1}, "Give either epochs or steps"),
        ({"columns": "x"}, "columns must be a list of names, got 'x'"),
        ({"columns": []}, "columns must be a list"),
        ({"filesystem": 3}, "filesystem must be one of pyarrow.fs or of fsspec, got int"),
        ({"workers": -1}, "workers must be at least 0"),
    ],
)
def test_arguments_that_make_no_sense_are_errors(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "data", 10)
    with pytest.raises(InvalidArgumentError, match=message):
        ParquetReader(path, **{"batch_size": 4, **options})


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    reader = ParquetReader(write(tmp_path / "data", 10), batch_size=4)
    next(iter(reader))
    reader.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        iter(reader)


def test_memory_that_is_read_ahead_is_bounded(tmp_path: Path) -> None:
    """Of 50 row groups of 80 kB no more are read than fit, though nobody takes what has been read."""
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"x": np.arange(500_000)}), folder / "a.parquet", row_group_size=10_000)
    groups: set[int] = set()

    def noted(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        groups.add(int(rows["x"][0]) // 10_000)
        return rows

    with ParquetReader(
        folder, batch_size=1, shuffle=False, transform=noted, memory_bytes=4 * 5 * 80_000, workers=2
    ) as reader:
        next(iter(reader))
        reader.close()
    assert 1 <= len(groups) <= 7
