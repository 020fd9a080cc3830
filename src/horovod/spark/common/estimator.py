"""Estimators: from a DataFrame, or Parquet in a store, to a trained model."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql.types import StringType

from horovod.errors import InvalidArgumentError
from horovod.spark.common.backend import Backend, SparkBackend
from horovod.spark.common.columns import WITHOUT_NUMBERS, class_of, data_type_to_str, element_of
from horovod.spark.common.params import EstimatorParams
from horovod.spark.common.serialization import Saveable, require_picklable
from horovod.spark.common.store import Store
from horovod.spark.common.training import Columns, Training, TrainingRun, row_shape, train_on_rank
from horovod.spark.common.util import (
    check_shape_compatibility,
    check_validation,
    get_dataset_properties,
    get_simple_meta_from_parquet,
    prepare_data,
)

__all__ = ["HorovodEstimator"]

# Parameters whose values go to the ranks as they are.
_SHIPPED = (
    "loss",
    "loss_constructors",
    "metrics",
    "callbacks",
    "checkpoint_callback",
    "custom_objects",
    "train_minibatch_fn",
    "transformation_fn",
    "data_module",
    "trainer_args",
    "logger",
    "profiler",
)


class HorovodEstimator(EstimatorParams, Saveable, Estimator):  # type: ignore[misc]
    """An estimator whose training runs in several processes."""

    run_prefix: str
    """Of the names of runs that get none."""

    default_data_module: Any
    """The default of ``data_module``."""

    checkpoint_suffix = ""
    """The ending of a checkpoint's name, whether the store has it or not."""

    # -- what frameworks say --------------------------------------------------------------------------------

    @abstractmethod
    def get_model_class(self) -> Any:
        """The class of what :meth:`fit` returns."""

    @abstractmethod
    def _training(self) -> Training:
        """Make the training that goes to the ranks. Raises for parameters that make no sense."""

    def _takes_text(self, name: str) -> bool:
        """Return whether the model takes texts in this column."""
        return False

    def _check_columns(self, dataset: Any) -> None:
        """Refuse columns whose values are no numbers, before data are written.

        Raises:
            InvalidArgumentError: there is one; the message names it.
        """
        if self._value("data_module") is not None:
            return  # which makes of them whatever it likes
        read = set(self._columns_read())  # a column that is missing is named later
        for field in dataset.schema:
            kind = element_of(field.dataType)
            if field.name not in read or class_of(kind) not in WITHOUT_NUMBERS:
                continue
            if isinstance(kind, StringType) and self._takes_text(field.name):
                continue
            what = f"Column {field.name!r} has the type {data_type_to_str(kind)}"
            if self._value("transformation_fn") is None:
                raise InvalidArgumentError(
                    f"{what}, of which the model gets no numbers. Make numbers of it before training, or by "
                    "transformation_fn, or leave it out."
                )
            if field.name in self._value("feature_cols"):
                warnings.warn(
                    f"{what}. In training transformation_fn makes numbers of it, but transform() does not "
                    "call that: it needs numbers in the DataFrame, or a model class that overrides "
                    "get_prediction_fn().",
                    stacklevel=4,
                )

    @abstractmethod
    def _steps(self, rows: int, rows_of_a_step: int) -> int:
        """Batches of an epoch, for so many rows."""

    @abstractmethod
    def _trained(self, training: Any, checkpoint: bytes) -> dict[str, Any]:
        """The trained model and what else the class of models wants of the checkpoint, by parameter.

        Args:
            training: what :meth:`_training` returned.
        """

    def _shapes(self) -> dict[str, Any]:
        """The shapes of inputs and outputs, for ``check_shape_compatibility``; {}: they are not known."""
        return {}

    def _get_model_kwargs(
        self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any
    ) -> dict[str, Any]:
        """Parameters of the class of models; a subclass with a class of its own says what that takes."""
        return {
            "history": history,
            "model": model,
            "optimizer": optimizer,
            "feature_columns": self._value("feature_cols"),
            "label_columns": self._value("label_cols"),
            "run_id": run_id,
            "_metadata": metadata,
        }

    # -- training -------------------------------------------------------------------------------------------

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on Parquet that is in the store already; returns a model.

        Args:
            params: parameters for this call alone, as for ``fit``.
            dataset_idx: which of the datasets of the store; None: the one without a number.

        With ``validation`` set, to whatever, the validation data of the store is used.
        """
        estimator = self.copy(dict(params)) if params else self
        backend, training = estimator._checked()
        store = estimator._value("store")
        data = get_simple_meta_from_parquet(
            store,
            estimator._value("label_cols"),
            estimator._value("feature_cols"),
            estimator._value("sample_weight_col"),
            dataset_idx,
        )
        return estimator._train(backend, training, dataset_idx, data)

    def _fit(self, dataset: Any) -> Any:
        if self._value("feature_cols") is None and self._value("label_cols") is not None:
            return self.copy({self.getParam("feature_cols"): self._features_of(dataset)})._fit(dataset)
        backend, training = self._checked()
        check_validation(self._value("validation"), dataset)
        self._check_columns(dataset)
        preparing = prepare_data(
            backend.num_processes(),
            self._value("store"),
            dataset,
            label_columns=self._value("label_cols"),
            feature_columns=self._value("feature_cols"),
            validation=self._value("validation"),
            sample_weight_col=self._value("sample_weight_col"),
            compress_sparse=self._value("compress_sparse_cols"),
            partitions_per_process=self._value("partitions_per_process"),
            verbose=self._value("verbose"),
        )
        with preparing as index:
            data = get_dataset_properties(index)
            metadata = data[2]
            if self._value("transformation_fn") is not None:  # after it rows may have any size
                metadata = {name: {**each, "shape": None} for name, each in metadata.items()}
            check_shape_compatibility(
                metadata, self._value("feature_cols"), self._value("label_cols"), **self._shapes()
            )
            return self._train(backend, training, index, data)

    def _train(
        self, backend: Backend, training: Training, index: int | None, data: tuple[int, int, Any, float]
    ) -> Any:
        train_rows, val_rows, metadata, _ = data
        validates = self._value("validation") not in (None, 0, "")
        if validates and not val_rows:
            raise InvalidArgumentError(
                f"validation={self._value('validation')!r} leaves no row for validation: {train_rows} rows "
                "are for training. Take a larger share, or None."
            )
        run_id = self._value("run_id") or f"{self.run_prefix}_{int(time.time())}"
        run = self._run(backend, index, run_id, train_rows, val_rows if validates else 0, metadata)
        results = backend.run(train_on_rank, args=(training, run), env=self._environment())
        history, checkpoint = results[0]
        trained = self._trained(training, checkpoint)
        model, optimizer = trained.pop("model"), trained.pop("optimizer", None)
        arguments = self._get_model_kwargs(model, history, optimizer, run_id, metadata)
        return self.get_model_class()(**{**trained, **arguments})

    def _run(
        self, backend: Backend, index: int | None, run_id: str, train_rows: int, val_rows: int, metadata: Any
    ) -> TrainingRun:
        store = self._value("store")
        remote = store.to_remote(run_id, index)
        batch = self._value("batch_size")
        val_batch = self._value("val_batch_size") or batch
        size = backend.num_processes()
        train_steps = self._value("train_steps_per_epoch") or max(1, self._steps(train_rows, batch * size))
        val_steps = 0
        if val_rows:
            wanted = self._value("validation_steps_per_epoch")
            val_steps = wanted or max(1, self._steps(val_rows, val_batch * size))
        name = remote.checkpoint_filename.removesuffix(self.checkpoint_suffix) + self.checkpoint_suffix
        seed = self._value("random_seed")
        arguments = {
            **self._values("shuffle", "inmemory_cache_all", "reader_pool_type", "label_cols"),
            "train_dir": remote.train_data_path,
            "val_dir": remote.val_data_path,
            "train_rows": train_rows,
            "val_rows": val_rows,
            "num_train_epochs": self._value("epochs"),
            "has_val": bool(val_rows),
            "train_batch_size": batch,
            "val_batch_size": val_batch,
            "transform_fn": self._value("transformation_fn"),
            "schema_fields": [*self._columns_read()],
            "storage_options": remote.storage_options,
            "steps_per_epoch_train": train_steps,
            "steps_per_epoch_val": val_steps,
            "verbose": self._value("verbose") > 1,
            "random_seed": seed or 0,
            "train_reader_worker_count": self._value("train_reader_num_workers"),
            "val_reader_worker_count": self._value("val_reader_num_workers"),
            "metadata": metadata,
            "continuous_cols": self._value("continuous_cols") or [],
            "categorical_cols": self._value("categorical_cols") or [],
        }
        return TrainingRun(
            store=remote,
            run_id=run_id,
            checkpoint_name=name,
            checkpoint=self._earlier_checkpoint(remote, name),
            data_module=self._value("data_module") or self.default_data_module,
            data_arguments={**arguments, **self._data_arguments()},
            columns=self._columns(),
            train_steps=train_steps,
            val_steps=val_steps,
            seed=seed,
            **self._values("epochs", "use_gpu", "verbose"),
        )

    def _data_arguments(self) -> dict[str, Any]:
        """Further arguments of the data module."""
        return {}

    def _environment(self) -> dict[str, str | None]:
        """Variables for the ranks."""
        return {}

    def _earlier_checkpoint(self, remote: Any, name: str) -> bytes | None:
        """Read the checkpoint called ``name`` of the run that is being resumed; None if there is none."""
        if self._value("run_id") is None or not remote.saving_runs:
            return None
        path = f"{remote.run_path}/{name}"
        if not remote.exists(path):
            return None
        if self._value("verbose"):
            print(f"Resuming run {self._value('run_id')} from its checkpoint {path}", flush=True)
        return bytes(remote.read(path))

    # -- what is checked on the driver ----------------------------------------------------------------------

    def _checked(self) -> tuple[Backend, Training]:
        """Check the parameters; return the backend and the training that the ranks run."""
        name = type(self).__name__
        for parameter in ("model", "store", "label_cols", "feature_cols"):
            if self._value(parameter) is None:
                raise InvalidArgumentError(f"{name} needs {parameter}: set it before fit().")
        if self._value("shuffle_buffer_size") is not None:
            warnings.warn(
                "shuffle_buffer_size has no effect: the reader chooses what it shuffles.",
                DeprecationWarning,
                stacklevel=5,
            )
        training = self._training()
        # Before data are written, which may take long.
        require_picklable(name, {each: self._value(each) for each in _SHIPPED if self.hasParam(each)})
        backend, store = self._get_or_create_backend(), self._value("store")
        if not isinstance(store, Store):
            raise InvalidArgumentError(
                f"{name}: store must be a Store, not {type(store).__name__}: Store.create({store!r})."
            )
        return backend, training

    def _get_or_create_backend(self) -> Backend:
        """Return the backend that runs the ranks; subclasses may choose another default."""
        backend, num_proc = self._value("backend"), self._value("num_proc")
        if backend is None:
            return SparkBackend(num_proc, verbose=self._value("verbose"))
        if num_proc is not None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: backend and num_proc are both set. The backend says how many "
                "processes there are: leave num_proc out."
            )
        found: Backend = backend
        return found

    def _features_of(self, dataset: Any) -> list[str]:
        """All columns that are nothing else."""
        others = {*self._value("label_cols"), self._value("sample_weight_col"), self._value("validation")}
        return [name for name in dataset.columns if name not in others]

    def _columns(self) -> Columns:
        features, labels = tuple(self._value("feature_cols") or ()), tuple(self._value("label_cols"))
        return Columns(
            features,
            labels,
            self._value("sample_weight_col"),
            self._row_shapes("input_shapes", features) if self.hasParam("input_shapes") else (),
            self._row_shapes("label_shapes", labels),
        )

    def _row_shapes(self, parameter: str, columns: tuple[str, ...]) -> tuple[Any, ...]:
        shapes = self._value(parameter)
        if shapes is None:
            return ()
        if len(shapes) != len(columns):
            raise InvalidArgumentError(
                f"{parameter} has {len(shapes)} shapes for {len(columns)} columns: {', '.join(columns)}."
            )
        return tuple(None if shape is None else row_shape(shape) for shape in shapes)

    def _columns_read(self) -> list[str]:
        weight = self._value("sample_weight_col")
        names = [*self._value("feature_cols"), *self._value("label_cols"), *([weight] if weight else [])]
        return list(dict.fromkeys(names))
