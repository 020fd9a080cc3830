"""Parameters of estimators and models: tables of them, and the classes that are made from these.

A row of a table becomes a ``Param`` of the class, its ``set...`` and ``get...`` methods, a keyword of its
constructor, and a line of its documentation.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from horovod.errors import InvalidArgumentError

__all__ = ["EstimatorParams", "HasParameters", "ModelParams", "Parameter", "parameters", "positive"]

Class = TypeVar("Class", bound=type)
_int, _str = TypeConverters.toInt, TypeConverters.toString
_bool, _strings = TypeConverters.toBoolean, TypeConverters.toListString
_START_METHODS = ("fork", "spawn", "forkserver")
_POOLS = ("thread", "process", "dummy")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an estimator or model.

    Attributes:
        name: of the keyword and of the ``Param``.
        default: what it is when it was not set, or set to None.
        text: what it means.
        convert: checks and converts what is set; one of pyspark's ``TypeConverters``. None: anything goes.
        also: part of the names of further accessors, which scripts know, after ``set`` and ``get``.
        accessors: whether it has the regular ones.
    """

    name: str
    default: Any
    text: str
    convert: Callable[[Any], Any] | None = None
    also: str = ""
    accessors: bool = True

    def accessor_names(self) -> list[str]:
        """Parts of the accessors' names after ``set`` and ``get``: "NumProc" for "num_proc"."""
        regular = "".join(word[:1].upper() + word[1:] for word in self.name.split("_"))
        return [name for name in (regular if self.accessors else "", self.also) if name]


def parameters(table: Sequence[Parameter]) -> Callable[[Class], Class]:
    """A decorator of classes: it gives them the parameters of a table, after those of their base classes. A
    row replaces that of a base class with its name."""

    def decorate(cls: Class) -> Class:
        inherited = getattr(cls, "_table", {})
        mine = {row.name: row for row in table}
        rows = {**inherited, **mine}
        cls._table = rows  # type: ignore[attr-defined]
        for row in mine.values():
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.text, row.convert))
            for name in row.accessor_names():
                setattr(cls, f"set{name}", _setter(row, f"set{name}"))
                setattr(cls, f"get{name}", _getter(row, f"get{name}"))
        listed = "\n".join(f"    {row.name}: {row.text}" for row in rows.values())
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nArgs:\n{listed}\n"
        keywords = [
            inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default)
            for row in rows.values()
        ]
        cls.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return cls

    return decorate


def _setter(row: Parameter, name: str) -> Callable[[Any, Any], Any]:
    def setter(self: HasParameters, value: Any) -> Any:
        return self._assign({row.name: value})

    setter.__name__, setter.__doc__ = name, f"Set ``{row.name}``: {row.text}. Returns this object."
    return setter


def _getter(row: Parameter, name: str) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self.getOrDefault(row.name)

    getter.__name__, getter.__doc__ = name, f"``{row.name}``: {row.text}."
    return getter


class HasParameters(Params):  # type: ignore[misc]
    """Base of classes with a table of parameters, see :func:`parameters`."""

    _table: dict[str, Parameter]

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._setDefault(**{row.name: copy.copy(row.default) for row in self._table.values()})
        self.setParams(**values)

    def setParams(self, **values: Any) -> Any:
        """Set parameters by name; None: the default. Returns this object.

        Parameters that a subclass has added in the way of Spark ML are among them.

        Raises:
            InvalidArgumentError: there is no such parameter.
        """
        unknown = sorted(name for name in values if not self.hasParam(name))
        if unknown:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no parameter {unknown[0]!r}. It has: {', '.join(self._table)}."
            )
        return self._assign(values)

    def _assign(self, values: dict[str, Any]) -> Any:
        """The same, for all rows of the table."""
        for name, value in values.items():
            if value is None:
                self.clear(self.getParam(name))
                continue
            try:
                self._set(**{name: value})
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{type(self).__name__}: {name} {error}") from None
        return self

    def _value(self, name: str) -> Any:
        """Return a parameter's value, set or by default. A None that a subclass has set counts as unset."""
        found = self.getOrDefault(name)
        return self._defaultParamMap.get(self.getParam(name)) if found is None else found

    def _values(self, *names: str) -> dict[str, Any]:
        """Return the values of these parameters, by name."""
        return {name: self._value(name) for name in names}

    if TYPE_CHECKING:  # the accessors come from the table

        def __getattr__(self, name: str) -> Any: ...


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
    Parameter("shuffle_buffer_size", None, "deprecated, has no effect", _int, also="ShufflingBufferSize"),
    Parameter("shuffle", True, "whether each epoch has the rows in another order", _bool),
    Parameter("partitions_per_process", 10, "files of training data for each process", positive),
    Parameter("run_id", None, "name of the run in the store; a run of that name is resumed", _str),
    Parameter("train_steps_per_epoch", None, "batches of an epoch; by default as the rows allow", positive),
    Parameter("validation_steps_per_epoch", None, "the same for validation", positive),
    Parameter("transformation_fn", None, "function of a batch or row before the model sees it"),
    Parameter("transformation_edit_fields", None, "(name, dtype, shape, nullable) that it adds"),
    Parameter("transformation_removed_fields", None, "names that it takes away", _strings),
    Parameter("train_reader_num_workers", 2, "threads that read rows", positive, also="TrainReaderNumWorker"),
    Parameter("val_reader_num_workers", 2, "the same for validation", positive, also="ValReaderNumWorker"),
    Parameter("reader_pool_type", "thread", "thread, process or dummy: how readers work", _one_of(_POOLS)),
    Parameter("label_shapes", None, "shapes of the labels of a row, one for each label"),
    Parameter("inmemory_cache_all", False, "keep a process's rows in memory", _bool, also="InMemoryCacheAll"),
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
    Parameter("label_columns", None, "columns that it predicts", _strings, also="LabelColoumns"),
    Parameter("run_id", None, "name of the run in the store", _str),
    Parameter("_metadata", None, "of the columns of the training data", accessors=False),
    Parameter("outputCols", None, "names of the columns that transform() adds", _strings),
    Parameter("batch_size", 1024, "rows that transform() gives to the model at once", positive),
)


@parameters(MODEL)
class ModelParams(HasParameters):
    """Parameters of every model."""
