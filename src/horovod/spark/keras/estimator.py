"""``KerasEstimator``: trains a Keras model on a DataFrame."""

from __future__ import annotations

import math
from typing import Any

from horovod.errors import InvalidArgumentError
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.params import Parameter, parameters
from horovod.spark.keras.datamodule import ParquetDataModule
from horovod.spark.keras.model import KerasModel
from horovod.spark.keras.packing import (
    SUFFIX,
    KerasSaveable,
    KerasSetting,
    LegacyOptimizer,
    as_bytes,
    from_bytes,
    names_of,
    takes_text,
)
from horovod.spark.keras.training import KerasTraining, LegacyKerasTraining

__all__ = ["KerasEstimator"]

KERAS = (
    Parameter("optimizer", None, "of Keras; by default that of the compiled model"),
    Parameter("loss", None, "as model.compile() takes it; by default that of the compiled model"),
    Parameter("loss_weights", None, "as model.compile() takes them"),
    Parameter("metrics", [], "as model.compile() takes them"),
    Parameter("custom_objects", {}, "classes and functions of the model by their names"),
    Parameter("callbacks", [], "of Keras, on every rank; a TensorBoard on rank 0"),
    Parameter(
        "checkpoint_callback", None, "saves the model instead of ModelCheckpoint; its path is replaced"
    ),
    Parameter("backend_env", {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}, "variables for the ranks"),
    Parameter("tensorflow_dataset_prefetch_buffer_size", 0, "batches read ahead; 0: as the reader likes"),
)


@parameters(KERAS)
class KerasEstimator(KerasSaveable, HorovodEstimator):
    """Trains a model of Keras 3, on any of its backends, or of ``tf_keras``, in several processes.
    :meth:`fit` returns a :class:`KerasModel`.

    Features are the inputs of the model, in their order, and have their shapes where the numbers of elements
    are the same. The ranks compute with the backend of the driver. A learning rate that is a number is
    multiplied by the number of processes; a schedule is used as it is.
    """

    run_prefix = "keras"
    default_data_module = ParquetDataModule
    checkpoint_suffix = SUFFIX

    def get_model_class(self) -> Any:
        return KerasModel

    def get_model_shapes(self) -> tuple[Any, Any]:
        """The shapes of inputs and outputs of the model, with the batch; None where it does not say."""
        model = self._value("model")

        def shapes(tensors: Any) -> Any:
            return [tuple(each.shape) for each in tensors] if tensors else None

        return shapes(getattr(model, "inputs", None)), shapes(getattr(model, "outputs", None))

    def _shapes(self) -> dict[str, Any]:
        inputs, outputs = self.get_model_shapes()
        labels = self._value("label_shapes")
        return {"input_shapes": inputs, "output_shapes": outputs, "label_shapes": labels}

    def _takes_text(self, name: str) -> bool:
        return takes_text(self._value("model"), self._value("feature_cols"), name)

    def _data_arguments(self) -> dict[str, Any]:
        return self._values("tensorflow_dataset_prefetch_buffer_size")

    def _steps(self, rows: int, rows_of_a_step: int) -> int:
        return math.ceil(rows / rows_of_a_step)

    def _environment(self) -> dict[str, str | None]:
        return {**self._value("backend_env"), **KerasSetting.of(self._value("model")).environment()}

    def _training(self) -> KerasTraining:
        name, model, loss = type(self).__name__, self._value("model"), self._value("loss")
        setting = KerasSetting.of(model)
        keras = setting.module()
        if not isinstance(model, keras.Model):
            raise InvalidArgumentError(
                f"{name}: model must be a Model of Keras 3 or of tf_keras, not {type(model).__module__}."
                f"{type(model).__name__}."
            )
        optimizer = self._value("optimizer") or getattr(model, "optimizer", None)
        if optimizer is None:
            raise InvalidArgumentError(f"{name} needs optimizer, or a compiled model.")
        if loss is None and not getattr(model, "_is_compiled" if setting.legacy else "compiled"):
            raise InvalidArgumentError(f"{name} needs loss, or a compiled model.")
        if loss is None and self._value("optimizer") is not None:
            raise InvalidArgumentError(
                f"{name}: optimizer is set, and loss is not. Set both, or none and compile the model."
            )
        checkpoint = self._value("checkpoint_callback")
        if checkpoint is not None and getattr(checkpoint, "save_weights_only", False):
            raise InvalidArgumentError(
                f"{name}: checkpoint_callback saves weights only. Training could not go on from such a file: "
                "let it save the model."
            )
        if getattr(checkpoint, "save_freq", "epoch") != "epoch":
            raise InvalidArgumentError(
                f"{name}: checkpoint_callback has save_freq={checkpoint.save_freq!r}. In the middle of an "
                "epoch the learning rate is that of all processes: let it save after epochs ('epoch')."
            )
        optimizer = None if loss is None else keras.optimizers.get(optimizer)
        if setting.legacy and optimizer is not None:
            optimizer = LegacyOptimizer(type(optimizer), optimizer.get_config())
        kind = LegacyKerasTraining if setting.legacy else KerasTraining
        return kind(
            setting=setting,
            model=as_bytes(model),
            optimizer=optimizer,
            loss=loss,
            custom_objects={**names_of(loss, self._value("metrics")), **self._value("custom_objects")},
            **self._values("loss_weights", "metrics", "gradient_compression", "callbacks"),
            checkpoint_callback=checkpoint,
        )

    def _trained(self, training: KerasTraining, checkpoint: bytes) -> dict[str, Any]:
        names = dict(training.custom_objects)
        model = from_bytes(checkpoint, training.setting.module().saving.load_model, custom_objects=names)
        return {"model": model, "custom_objects": names, "_floatx": training.setting.floatx}

    def _get_model_kwargs(
        self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any
    ) -> dict[str, Any]:
        found = super()._get_model_kwargs(model, history, optimizer, run_id, metadata)
        del found["optimizer"]  # it is part of the model
        return found
