"""Types of columns, for both ways: ``transform`` predicts from the same numbers that ``fit`` trains on."""

from __future__ import annotations

import datetime
import decimal
import os
import sys
from typing import Any

import numpy as np
import pytest
from tests.spark.conftest import WHOLE
from tests.spark.estimators.conftest import InProcess

from horovod.errors import InvalidArgumentError

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("context"),
    # Of Keras on PyTorch, whenever it saves a variable with a NumPy that has "copy".
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

whole = pytest.mark.skipif(not WHOLE, reason="part of the full matrix")

D = decimal.Decimal
ROWS = 8


def vector(sparse: bool, row: int) -> Any:
    from pyspark.ml.linalg import Vectors

    return Vectors.sparse(3, [(1, row / 4)]) if sparse else Vectors.dense(row, 1, 0)


# Type in SQL, or None where Spark finds it out -> the value in a row.
NUMBERS: dict[str, Any] = {
    "boolean": lambda row: row % 2 == 0,
    "tinyint": lambda row: row - 4,
    "smallint": lambda row: row * 100,
    "int": lambda row: -row,
    "bigint": lambda row: row << 20,
    "float": lambda row: row / 2,
    "double": lambda row: row / 8,
    "decimal(10,2)": lambda row: D(row) / 4,
    "decimal(20,0)": lambda row: D(row),
    "array<double>": lambda row: [row / 2, 1.0],
    "array<int>": lambda row: [row, row, 1],
    "array<boolean>": lambda row: [row % 2 == 0, True],
    "array<decimal(8,3)>": lambda row: [D(row) / 8, D(1)],
    "array<array<float>>": lambda row: [[row / 2, 0.0], [1.0, 2.0]],
    "dense vector": lambda row: vector(False, row),
    "sparse vector": lambda row: vector(True, row),
    "vectors of both kinds": lambda row: vector(row % 2 == 0, row),
}
# Type in SQL -> value.
OTHERS: dict[str, Any] = {
    "string": "text",
    "binary": b"bytes",
    "date": datetime.date(2024, 2, 3),
    "timestamp": datetime.datetime(2024, 2, 3),
    "array<string>": ["text"],
    "array<array<binary>>": [[b"bytes"]],
    "map<string,int>": {"a": 1},
    "struct<a:int>": (1,),
}


def elements(value: Any) -> Any:
    return np.asarray(value.toArray() if hasattr(value, "toArray") else value)


def total(value: Any) -> float:
    return float(np.sum(elements(value).astype(float)))


def table(session: Any) -> Any:
    """A column ``c0``, ``c1`` ... for each type, and ``sums``: of the elements of each."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType, _parse_datatype_string

    fields = [
        StructField(f"c{number}", VectorUDT() if "vector" in name else _parse_datatype_string(name))
        for number, name in enumerate(NUMBERS)
    ]
    rows = []
    for row in range(ROWS):
        values = [make(row) for make in NUMBERS.values()]
        rows.append((*values, [total(value) for value in values]))
    kind = StructType([*fields, StructField("sums", ArrayType(DoubleType()))])
    return session.createDataFrame(rows, kind).coalesce(1)


FEATURES = [f"c{number}" for number in range(len(NUMBERS))]


def summing() -> Any:
    import torch

    class Summing(torch.nn.Module):
        """Gives the sum of each feature, as long as nobody trains it."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, *features: Any) -> Any:
            sums = [feature.double().reshape(len(feature), -1).sum(1) for feature in features]
            return torch.stack(sums, 1) * self.factor

    return Summing()


def estimator_of(features: list[str], store: Any, model: Any, **options: Any) -> Any:
    """An estimator that trains ``model`` on ``features`` without changing it."""
    import torch

    from horovod.spark.torch import TorchEstimator

    return TorchEstimator(
        backend=InProcess(),
        store=store,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loss=torch.nn.functional.mse_loss,
        feature_cols=features,
        label_cols=["sums"],
        verbose=0,
        **options,
    )


@pytest.mark.parametrize("compress", [True, pytest.param(False, marks=whole)])
def test_each_type_of_numbers_goes_both_ways_in_pytorch(session: Any, store: Any, compress: bool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    model, data = summing(), table(session)
    options = {"batch_size": ROWS, "compress_sparse_cols": compress, "epochs": 1}
    trained = estimator_of(FEATURES, store, model, **options).fit(data)
    assert trained.getHistory()[0]["train"]["loss"] == pytest.approx(0.0, abs=1e-9)
    for row in trained.transform(data).collect():
        assert dict(zip(NUMBERS, row["sums__output"], strict=True)) == dict(
            zip(NUMBERS, row["sums"], strict=True)
        )


@pytest.mark.parametrize("kind", OTHERS)
def test_a_type_without_numbers_is_refused_by_name_both_ways(session: Any, store: Any, kind: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from horovod.spark.torch import TorchModel

    model = summing()
    data = session.createDataFrame([((OTHERS[kind],), [0.0])], f"c struct<v: {kind}>, sums array<double>")
    data = data.selectExpr("c.v as image", "sums")
    estimator = estimator_of(["image"], store, model)
    with pytest.raises(InvalidArgumentError, match=r"(?i)column 'image' (has the type|does not fit)"):
        estimator.fit(data)
    trained = TorchModel(model=model, feature_columns=["image"], label_columns=["sums"])
    with pytest.raises(InvalidArgumentError, match=r"Column 'image' has the type .*gets no numbers"):
        trained.transform(data)


def test_what_transformation_fn_makes_numbers_of_is_said_before_training(session: Any, store: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")

    def decoded(row: Any) -> Any:
        return {**row, "image": np.frombuffer(row["image"], np.uint8).astype(float)}

    model = summing()
    data = session.createDataFrame(
        [(bytes([row, 1]), [row + 1.0]) for row in range(4)], "image binary, sums array<double>"
    )
    estimator = estimator_of(["image"], store, model, transformation_fn=decoded, epochs=1)
    with pytest.warns(
        UserWarning, match=r"'image' has the type Binary.*transform\(\) does not call"
    ) as caught:
        trained = estimator.fit(data)
    assert caught[0].filename == __file__
    assert trained.getHistory()[0]["train"]["loss"] == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(InvalidArgumentError, match=r"'image' has the type binary"):
        trained.transform(data)


def test_a_null_within_an_array_is_an_error_both_ways(session: Any, store: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from horovod.spark.torch import TorchModel

    data = session.createDataFrame([([[1.0], [None]],)], "c array<array<double>>")
    trained = TorchModel(model=summing(), feature_columns=["c"], label_columns=["sums"])
    with pytest.raises(Exception, match="Column 'c' has a null"):
        trained.transform(data).collect()


def test_each_type_of_numbers_goes_both_ways_in_keras(session: Any, store: Any) -> None:
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")  # the quickest to start
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    from horovod.spark.keras import KerasEstimator

    data = table(session)
    sizes = [
        np.size(np.asarray(value.toArray() if hasattr(value, "toArray") else value))
        for value in data.first()[:-1]
    ]
    inputs = [keras.Input((size,), dtype="float64") for size in sizes]
    sums = keras.layers.Concatenate(dtype="float64")(
        [keras.ops.sum(each, axis=1, keepdims=True) for each in inputs]
    )
    layer = keras.layers.Dense(len(sizes), use_bias=False, kernel_initializer="identity", dtype="float64")
    trained = KerasEstimator(
        backend=InProcess(),
        store=store,
        model=keras.Model(inputs, layer(sums)),
        optimizer=keras.optimizers.SGD(0.0),
        loss="mse",
        feature_cols=FEATURES,
        label_cols=["sums"],
        batch_size=ROWS,
        epochs=1,
        verbose=0,
    ).fit(data)
    assert trained.getHistory()["loss"][0] == pytest.approx(0.0, abs=1e-9)
    for row in trained.transform(data).collect():
        assert dict(zip(NUMBERS, row["sums__output"], strict=True)) == pytest.approx(
            dict(zip(NUMBERS, row["sums"], strict=True))
        )


def test_keras_takes_texts_where_an_input_has_them_and_no_dates(session: Any, store: Any) -> None:
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")  # the quickest to start
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    from horovod.spark.keras import KerasEstimator

    data = session.createDataFrame([(OTHERS["date"], "a", 1.0)], "day date, word string, y double")
    for column, type_of_input in (("day", "float32"), ("word", "float32")):
        inputs = keras.Input((1,), dtype=type_of_input)
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        estimator = KerasEstimator(
            backend=InProcess(), store=store, model=model, optimizer="sgd", loss="mse",
            feature_cols=[column], label_cols=["y"],
        )  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"Column '{column}' has the type"):
            estimator.fit(data)
