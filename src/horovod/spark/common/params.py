"""The parameters that all estimators have, and all models that they return."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param import TypeConverters

from horovod.errors import InvalidArgumentError
from horovod.spark.common.parameters import HasParameters, Parameter, parameters

__all__ = ["EstimatorParams", "ModelParams", "positive"]

_int, _str = TypeConverters.toInt, TypeConverters.toString
_bool, _strings = TypeConverters.toBoolean, TypeConverters.toListString
_START_METHODS = ("fork", "spawn", "forkserver")
_POOLS = ("thread", "process", "dummy")


def positive(value: Any) -> int:
    """A converter: an integer of at least 1."""
    number = int(_int(value))
    if number < 1:
        raise InvalidArgumentError(f"must be at least 1, not {number}.")
    return number


def _one_of(names: tuple[str, ...]) -> Any:
    def convert(value: Any) -> str:
        if value not in names:
            raise InvalidArgumentError(f"must be one of {', '.join(names)}, not {value!r}.")
        return str(value)

    return convert


ESTIMATOR = (
    Parameter("num_proc", None, "processes; by default the parallelism of the SparkContext", positive),
    Parameter("model", None, "of the framework, which is trained; it is left as it is"),
    Parameter("backend", None, "where the processes run, a Backend; by default in Spark tasks"),
    Parameter("store", None, "where training data and checkpoints are, a Store"),
    Parameter("optimizer", None, "of the framework, with the learning rate of one process"),
    Parameter("loss", None, "a loss, or a list with one for each label"),
    Parameter("loss_weights", None, "numbers, one for each label", TypeConverters.toListFloat),
    Parameter("sample_weight_col", None, "column with a weight of each row in the loss", _str),
    Parameter("metrics", [], "what is measured besides the loss"),
    Parameter("feature_cols", None, "columns that are the inputs of the model, in their order", _strings),
    Parameter("label_cols", None, "columns that the outputs of the model are compared with", _strings),
    Parameter("continuous_cols", None, "columns of numbers, for data modules that ask", _strings),
    Parameter("categorical_cols", None, "columns of categories, for data modules that ask", _strings),
    Parameter("validation", None, "share of the rows, in [0, 1), or a column that is > 0 or true in them"),
    Parameter("gradient_compression", None, "one of hvd.Compression"),
    Parameter("compress_sparse_cols", False, "store sparse vectors as indices and values", _bool),
    Parameter("batch_size", 32, "rows of a batch, in each process", positive),
    Parameter("val_batch_size", None, "the same for validation; by default batch_size", positive),
    Parameter("epochs", 1, "how often the rows are gone through", positive),
    Parameter("verbose", 1, "0: say nothing", _int),
    Parameter("callbacks", [], "of the framework"),
    Parameter("random_seed", None, "for the framework and the order of rows", _int),
    Parameter(
        "shuffle_buffer_size",
        None,
        "deprecated, has no effect",
        _int,
        setters=("setShufflingBufferSize",),
        getters=("getShufflingBufferSize",),
    ),
    Parameter("shuffle", True, "whether each epoch has the rows in another order", _bool),
    Parameter("partitions_per_process", 10, "files of training data for each process", positive),
    Parameter("run_id", None, "name of the run in the store; a run of that name is resumed", _str),
    Parameter("train_steps_per_epoch", None, "batches of an epoch; by default as the rows allow", positive),
    Parameter("validation_steps_per_epoch", None, "the same for validation", positive),
    Parameter("transformation_fn", None, "function of a batch or row before the model sees it"),
    Parameter("transformation_edit_fields", None, "(name, dtype, shape, nullable) that it adds"),
    Parameter("transformation_removed_fields", None, "names that it takes away", _strings),
    Parameter(
        "train_reader_num_workers",
        2,
        "threads that read training data",
        positive,
        setters=("setTrainReaderNumWorker",),
        getters=("getTrainReaderNumWorker",),
    ),
    Parameter(
        "val_reader_num_workers",
        2,
        "threads that read validation data",
        positive,
        setters=("setValReaderNumWorker",),
        getters=("getValReaderNumWorker",),
    ),
    Parameter("reader_pool_type", "thread", "thread, process or dummy: how readers work", _one_of(_POOLS)),
    Parameter("label_shapes", None, "shapes of the labels of a row, one for each label"),
    Parameter(
        "inmemory_cache_all",
        False,
        "keep the rows of a process in memory after the first epoch",
        _bool,
        setters=("setInMemoryCacheAll",),
        getters=("getInMemoryCacheAll",),
    ),
    Parameter("use_gpu", True, "use a GPU if there is one", _bool),
    Parameter("mp_start_method", None, "how processes of readers start", _one_of(_START_METHODS)),
    Parameter("data_module", None, "class of DataModule that reads the training data"),
)


@parameters(ESTIMATOR)
class EstimatorParams(HasParameters):
    """Parameters of every estimator."""


MODEL = (
    Parameter("history", None, "what was measured in training"),
    Parameter("model", None, "of the framework, trained"),
    Parameter("feature_columns", None, "columns that are the inputs of the model, in their order", _strings),
    Parameter(
        "label_columns",
        None,
        "columns that it was trained to predict",
        _strings,
        setters=("setLabelColoumns",),
    ),
    Parameter("run_id", None, "name of the run in the store", _str),
    Parameter("_metadata", None, "of the columns of the training data", accessors=False),
    Parameter("outputCols", None, "names of the columns that transform() adds", _strings),
    Parameter("batch_size", 1024, "rows that transform() gives to the model at once", positive),
)


@parameters(MODEL)
class ModelParams(HasParameters):
    """Parameters of every model."""
