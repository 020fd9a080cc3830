"""DataFrames on their way to ranks: the reader gives what Spark writes, and what does not fit is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from numpy.typing import NDArray
from tests.spark.conftest import WHOLE

from horovod.data.parquet import ParquetReader
from horovod.errors import DataStoreError, InvalidArgumentError
from horovod.spark.common.columns import densify
from horovod.spark.common.dataset import Claim
from horovod.spark.common.store import FilesystemStore
from horovod.spark.common.util import (
    check_validation,
    clear_training_cache,
    get_dataset_properties,
    get_simple_meta_from_parquet,
    prepare_data,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def spark(context: Any) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession(context)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilesystemStore]:
    yield FilesystemStore(str(tmp_path))
    clear_training_cache()


def rows_at(path: str) -> dict[str, NDArray[Any]]:
    """Everything, in the order of the column ``number``."""
    with ParquetReader(path, batch_size=1000, epochs=1, workers=0) as reader:
        (batch,) = reader
    order = np.argsort(batch["number"])
    return {name: values[order] for name, values in batch.items()}


def test_scalars_arrays_and_vectors_arrive(spark: Any, store: FilesystemStore) -> None:
    from pyspark.ml.linalg import DenseVector, SparseVector, Vectors, VectorUDT
    from pyspark.sql.types import ArrayType, DoubleType, LongType

    sparse = [Vectors.sparse(5, {n % 5: n + 0.5} if n % 3 else {}) for n in range(20)]
    mixed = [Vectors.dense(n, 1) if n % 2 else Vectors.sparse(2, {0: n}) for n in range(20)]
    df = spark.createDataFrame(
        [(n, n / 4, [float(n), -1.0], Vectors.dense(n, 2, 3), sparse[n], mixed[n]) for n in range(20)],
        ["number", "label", "list", "dense", "sparse", "mixed"],
    ).repartition(3)
    with prepare_data(2, store, df, ["label", "mixed"], None, compress_sparse=True) as index:
        train_rows, val_rows, metadata, row_bytes = get_dataset_properties(index)
        rows = rows_at(store.get_train_data_path(index))
    assert (train_rows, val_rows) == (20, 0)
    assert 8 < row_bytes < 1000
    assert {name: tuple(each.values()) for name, each in metadata.items()} == {
        "number": (LongType, False, 1, "nochange", 1),
        "list": (ArrayType, False, 2, "nochange", 2),
        "dense": (DenseVector, False, 3, "array", 3),
        "sparse": (SparseVector, True, 5, "custom_sparse_format", 1),
        "label": (DoubleType, False, 1, "nochange", 1),
        "mixed": (VectorUDT, False, 2, "array", 2),
    }
    assert rows["number"].tolist() == list(range(20))
    assert rows["label"].tolist() == [n / 4 for n in range(20)]
    assert rows["list"].tolist() == [[n, -1] for n in range(20)]
    assert rows["dense"].tolist() == [[n, 2, 3] for n in range(20)]
    assert rows["sparse"].shape == (20, 3)
    assert densify(rows["sparse"], 5).tolist() == [each.toArray().tolist() for each in sparse]
    assert rows["mixed"].tolist() == [each.toArray().tolist() for each in mixed]


def test_a_share_or_a_column_says_which_rows_to_validate_on(spark: Any, store: FilesystemStore) -> None:
    df = spark.createDataFrame([(n, 1.0, n % 4 == 0) for n in range(100)], ["number", "label", "held_out"])
    with prepare_data(2, store, df, ["label"], ["number"], "held_out") as by_column:
        assert rows_at(store.get_val_data_path(by_column))["number"].tolist() == list(range(0, 100, 4))
        with prepare_data(2, store, df, ["label"], ["number"], 0.3) as by_share:
            assert by_share != by_column
            train = rows_at(store.get_train_data_path(by_share))["number"].tolist()
            held_out = rows_at(store.get_val_data_path(by_share))["number"].tolist()
            assert sorted(train + held_out) == list(range(100))
            assert 15 <= len(held_out) <= 45
            assert get_dataset_properties(by_share)[:2] == (len(train), len(held_out))
    found = get_simple_meta_from_parquet(store, ["label"], ["number"], dataset_idx=by_column)
    assert found[:2] == (75, 25)
    assert found[2]["number"]["shape"] == 1


def test_a_share_is_taken_of_rows_that_are_computed_once(
    context: Any, spark: Any, store: FilesystemStore
) -> None:
    """Rows that are others in each evaluation, as after limit(), would be in both parts or in none."""
    import random

    from pyspark.sql import functions

    computed = context.accumulator(0)
    kept_before = context._jsc.getPersistentRDDs().size()

    def number(_: int) -> float:
        computed.add(1)
        return random.random()

    made = functions.udf(number, "double", useArrow=False).asNondeterministic()
    df = spark.range(100).coalesce(1).select(made("id").alias("number"), functions.lit(1.0).alias("label"))
    with prepare_data(1, store, df, ["label"], ["number"], 0.3) as index:
        assert sum(get_dataset_properties(index)[:2]) == 100
    assert computed.value == 100
    assert context._jsc.getPersistentRDDs().size() == kept_before, "nothing stays with the executors"


def test_data_are_used_again_for_the_same_frame_only(spark: Any, store: FilesystemStore) -> None:
    first = spark.createDataFrame([(1, 1.0)], ["number", "label"])
    second = spark.createDataFrame([(2, 1.0)], ["number", "label"])
    with prepare_data(1, store, first, ["label"], ["number"]) as index:
        part, *_ = Path(store.get_localized_path(store.get_train_data_path(index))).glob("*.parquet")
        with prepare_data(1, store, first, ["label"], ["number"]) as again:
            assert again == index
        with prepare_data(1, store, second, ["label"], ["number"]) as other:
            assert other != index
            assert rows_at(store.get_train_data_path(other))["number"].tolist() == [2]
    with prepare_data(1, store, first, ["label"], ["number"]) as again:
        assert again == index
        assert part.exists()
    store.remove(store.get_train_data_path(index))
    with prepare_data(1, store, first, ["label"], ["number"]) as again:
        assert rows_at(store.get_train_data_path(again))["number"].tolist() == [1]
    with prepare_data(1, store, second, ["label"], ["number"]) as other, pytest.raises(InvalidArgumentError):
        get_dataset_properties(other + 7)


def test_drivers_of_one_store_do_not_meet(
    spark: Any, store: FilesystemStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first = spark.createDataFrame([(1, 1.0)], ["number", "label"])
    second = spark.createDataFrame([(2, 1.0)], ["number", "label"])
    other = Claim(store, store.get_train_data_path(0), driver="another process")
    with prepare_data(1, store, first, ["label"], ["number"]) as index:
        assert index == 0
        assert other.take() is not None
    assert other.take() is None
    with prepare_data(1, store, second, ["label"], ["number"], verbose=1) as index:
        assert index == 1
        assert rows_at(store.get_train_data_path(0))["number"].tolist() == [1]
    said = capsys.readouterr().out
    assert re.search(r"Data: .*data\.0 is in use by .* \(process \d+\); another number is taken", said)
    other.release()
    # It may have written other rows there, as many as there were.
    with prepare_data(1, store, first, ["label"], ["number"], verbose=1) as index:
        assert index == 0
    assert "used again" not in capsys.readouterr().out


BAD = [
    ("[(1, 1.0), (2, None)]", {}, "'label' has nulls in 1 of 2 rows. Fill them"),
    ("[([1.0, None], 1.0), ([1.0, 2.0], 2.0)]", {}, "'number' has nulls in 1 of 2 rows"),
    ("[([1.0], 1.0), ([1.0, 2.0], 2.0)]", {}, "'number' has rows of 1 to 2 elements"),
    ("[(Vectors.sparse(3, {}), 1.0), (Vectors.sparse(2, {}), 2.0)]", {}, "'number' has rows of 2 to 3 elem"),
    (
        "[(Vectors.sparse(3, {}), 1.0), (Vectors.sparse(2, {}), 2.0)]",
        {"compress_sparse": True},
        "'number' has rows of 2 to 3 elements",
    ),
    ("[({'a': 1}, 1.0)]", {}, "'number' does not fit: A column of type MapType"),
    ("[(1, 1.0)]", {"feature_columns": ["a"]}, "no feature column 'a'; it has 'number', 'label'"),
    ("[(1, 1.0)]", {"label_columns": ["b"]}, "no label column 'b'"),
    ("[(1, 1.0)]", {"label_columns": []}, "no label columns"),
    ("[(1, 1.0)]", {"sample_weight_col": "w"}, "no column of sample weights 'w'"),
    ("[(1, 1.0)]", {"num_processes": 0}, "num_processes must be at least 1, got 0"),
    ("[(1, 1.0)]", {"validation": "v"}, "names the column 'v', which is not there"),
    ("[(1, 1.0)]", {"validation": "label"}, "no rows to train on"),
    ("[(1, 0.0)]", {"validation": "label"}, "no rows to validate on"),
]


# One of those that Spark must compute, and those that it need not.
@pytest.mark.parametrize(("rows", "options", "message"), BAD if WHOLE else [BAD[1], *BAD[5:12]])
def test_what_does_not_fit_is_named(
    spark: Any, store: FilesystemStore, rows: str, options: dict[str, Any], message: str
) -> None:
    from pyspark.ml.linalg import Vectors

    df = spark.createDataFrame(eval(rows, {"Vectors": Vectors}), ["number", "label"])
    arguments: dict[str, Any] = {
        "num_processes": 1,
        "store": store,
        "df": df,
        "label_columns": ["label"],
        "feature_columns": ["number"],
    }
    with pytest.raises(InvalidArgumentError, match=message), prepare_data(**{**arguments, **options}):
        pytest.fail("data that do not fit have been prepared")


def test_a_store_that_cannot_be_written_is_named_before_spark_begins(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    df = spark.createDataFrame([(1, 1.0)], ["number", "label"])
    store = FilesystemStore(f"{tmp_path}/file")
    with (
        pytest.raises(DataStoreError, match=r"Cannot write file:.*/file/intermediate_train_data\.0"),
        prepare_data(1, store, df, ["label"], ["number"]),
    ):
        pytest.fail("nothing can be there")


def test_rows_that_executors_write_elsewhere_are_missed(
    spark: Any, store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = spark.createDataFrame([(1, 1.0)], ["number", "label"])
    monkeypatch.setattr(store, "is_parquet_dataset", lambda path: False)  # as on another host
    with (
        pytest.raises(DataStoreError, match=r"written 1 rows to .*, but this host finds 0 there"),
        prepare_data(1, store, df, ["label"], ["number"]),
    ):
        pytest.fail("nothing is there")


@pytest.mark.parametrize("validation", [1.0, -0.1, True, ["a"], "text"])
def test_validation_that_makes_no_sense(spark: Any, validation: Any) -> None:
    df = spark.createDataFrame([(1, "a")], ["number", "text"])
    with pytest.raises(InvalidArgumentError, match="validation"):
        check_validation(validation, df)


@pytest.mark.parametrize("validation", [None, 0, 0.0, 0.5, "number"])
def test_validation_that_makes_sense(spark: Any, validation: Any) -> None:
    check_validation(validation, spark.createDataFrame([(1, "a")], ["number", "text"]))
