"""Parameters of estimators and models, and what is refused before anything runs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import torch
from tests.spark.estimators.conftest import InProcess

from horovod.spark.torch import TorchEstimator, TorchModel

# Names that scripts for the interface use, beside set... and get... of each parameter in camel case.
ODD = {
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "inmemory_cache_all": "InMemoryCacheAll",
}
EXAMPLES: dict[str, Any] = {
    "num_proc": 3,
    "loss_weights": [0.5],
    "sample_weight_col": "w",
    "feature_cols": ["a", "b"],
    "validation": 0.25,
    "run_id": "run",
    "shuffle": False,
    "shuffle_buffer_size": 9,
    "train_reader_num_workers": 4,
    "val_reader_num_workers": 5,
    "inmemory_cache_all": True,
    "reader_pool_type": "process",
    "mp_start_method": "spawn",
    "input_shapes": [[-1, 2]],
    "backward_passes_per_step": 2,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_parameter_has_a_setter_and_a_getter(name: str) -> None:
    estimator = TorchEstimator()
    value = EXAMPLES[name]
    regular = "".join(word.capitalize() for word in name.split("_"))
    for accessor in dict.fromkeys([regular, ODD.get(name, regular)]):
        default = getattr(estimator, f"get{accessor}")()
        assert default != value
        assert getattr(estimator, f"set{accessor}")(value) is estimator
        assert getattr(estimator, f"get{accessor}")() == value == estimator.getOrDefault(name)
        assert getattr(estimator, f"set{accessor}")(None) is estimator
        assert getattr(estimator, f"get{accessor}")() == default


def test_keywords_are_those_of_the_signature() -> None:
    names = list(inspect.signature(TorchEstimator).parameters)
    assert {"num_proc", "model", "backend", "store", "loss_constructors", "train_minibatch_fn"} <= set(names)
    assert TorchEstimator(epochs=7).setParams(batch_size=5).getEpochs() == 7
    with pytest.raises(ValueError, match=r"TorchEstimator has no parameter 'epoch'\. It has: num_proc,"):
        TorchEstimator(epoch=3)


def test_lists_of_one_estimator_are_not_those_of_another() -> None:
    TorchEstimator().getMetrics().append("mine")
    assert TorchEstimator().getMetrics() == []


def test_columns_of_a_model_have_two_setters() -> None:
    model = TorchModel(label_columns=["a"])
    assert model.setLabelColoumns(["b"]).getLabelColumns() == ["b"]
    assert model.setLabelColumns(["c"]).output_columns() == ["c__output"]
    assert model.setOutputCols(["d"]).output_columns() == ["d"]
    with pytest.raises(ValueError, match="outputCols has 2 names for 1 labels: c"):
        model.setOutputCols(["d", "e"]).output_columns()


def estimator(**more: Any) -> TorchEstimator:
    model = torch.nn.Linear(1, 1)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.functional.mse_loss,
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "store": "unused",
        "backend": InProcess(),
    }
    return TorchEstimator(**{**given, **more})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_proc": 2}, "backend and num_proc are both set"),
        ({"model": None}, "needs model"),
        ({"store": None}, "needs store"),
        ({}, r"store must be a Store, not str: Store.create\('unused'\)"),
        ({"label_cols": None}, "needs label_cols"),
        ({"optimizer": None}, "needs optimizer"),
        ({"loss": None}, "needs loss, loss_constructors or train_minibatch_fn"),
        ({"loss_constructors": [torch.nn.MSELoss]}, "loss and loss_constructors are both set"),
        (
            {"loss": [torch.nn.functional.mse_loss] * 2},
            "loss must be one for all labels .y., or one for each: A list of 1 values is needed",
        ),
        ({"loss_weights": [1.0, 2.0]}, "loss_weights has 2 numbers for 1 labels: y"),
        ({"metrics": [[min, max]]}, "Group 0 of metrics has 2 functions for 1 labels"),
        (
            {"optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)},
            "has parameters that are not of the model",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_data_is_looked_at(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        estimator(**wrong).fit(None)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be at least 1, not 0"),
        ({"mp_start_method": "thread"}, "mp_start_method must be one of fork, spawn, forkserver"),
        ({"reader_pool_type": "fiber"}, "reader_pool_type must be one of thread, process, dummy"),
    ],
)
def test_values_that_make_no_sense_are_refused_when_they_are_set(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TorchEstimator(**wrong)


def test_a_size_of_the_shuffling_buffer_is_deprecated() -> None:
    given = estimator(shuffle_buffer_size=5, num_proc=2)
    with pytest.warns(DeprecationWarning, match="has no effect"), pytest.raises(ValueError, match="both set"):
        given.fit(None)
