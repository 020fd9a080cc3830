"""``TorchEstimator`` of Lightning: trains a LightningModule on a DataFrame; ``TorchModel``: applies it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from pyspark.ml.param import TypeConverters

from horovod.errors import InvalidArgumentError
from horovod.spark.common.model import Predictor
from horovod.spark.common.params import Parameter, parameters, positive
from horovod.spark.common.training import TrainingRun
from horovod.spark.lightning.datamodule import ParquetDataModule, check_plain, is_plain
from horovod.spark.lightning.modules import PREFIX, is_lightning
from horovod.spark.lightning.training import LightningTraining
from horovod.spark.torch.estimator import TorchLosses
from horovod.spark.torch.losses import metric_groups
from horovod.spark.torch.model import TorchModel as PlainModel
from horovod.spark.torch.model import TorchPredictor
from horovod.spark.torch.packing import PackedModule, PackedOptimizer, from_bytes

__all__ = ["TorchEstimator", "TorchModel"]

_int = TypeConverters.toInt
_bool = TypeConverters.toBoolean


class TorchModel(PlainModel):
    """A trained LightningModule, or the plain module that was given. ``transform`` adds a column with what
    its ``forward`` returns for each label.

    ``forward`` of a LightningModule takes the features in their order; that of a plain module by the names of
    their columns.
    """

    def _predictor(self) -> Predictor:
        found = super()._predictor()
        model: Any = self._value("model")
        if is_lightning(model) or not isinstance(found, TorchPredictor):
            return found
        return replace(found, names=tuple(self._value("feature_columns")))


def _queue_size(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RuntimeError(
            f"The size of a queue must be a number of batches or a fraction of an epoch, not {value!r}."
        )
    return value


LIGHTNING = (
    Parameter("model", None, "LightningModule, or a module of PyTorch with optimizer and loss"),
    Parameter("optimizer", None, "of torch.optim, for a plain module alone"),
    Parameter("callbacks", [], "of Lightning; a ModelCheckpoint among them replaces ours"),
    Parameter("trainer_args", {}, "arguments of the Trainer, over ours"),
    Parameter("num_gpus", None, "GPUs of a process; 0: none", _int, also="NumGPUs"),
    Parameter("logger", None, "of Lightning; by default TensorBoard's, if it is installed"),
    Parameter("log_every_n_steps", 50, "batches between lines of the log", positive),
    Parameter(
        "loader_num_epochs", None, "how often readers go through the rows; by default endlessly", positive
    ),
    Parameter("terminate_on_nan", False, "fail when a loss is not finite", _bool),
    Parameter("profiler", None, "of Lightning"),
    Parameter("debug_data_loader", False, "let queues of batches say what they do", _bool),
    Parameter("train_async_data_loader_queue_size", None, "batches read ahead", _queue_size),
    Parameter("val_async_data_loader_queue_size", None, "the same for validation", _queue_size),
    Parameter("train_minibatch_fn", None, "not used: the module has its own step"),
)


@parameters(LIGHTNING)
class TorchEstimator(TorchLosses):
    """Trains a LightningModule of Lightning 2 in several processes; :meth:`fit` returns a
    :class:`TorchModel`.

    Batches are dictionaries of tensors by column. Learning rates are multiplied by the number of processes.
    A plain module needs ``optimizer`` and ``loss``; the features are its arguments, by the names of their
    columns.
    """

    default_data_module = ParquetDataModule
    checkpoint_suffix = ".ckpt"

    def get_model_class(self) -> Any:
        return TorchModel

    def _data_arguments(self) -> dict[str, Any]:
        return {
            **self._values("train_async_data_loader_queue_size", "val_async_data_loader_queue_size"),
            **self._values("transformation_edit_fields", "transformation_removed_fields"),
            **self._values("debug_data_loader"),
            "num_reader_epochs": self._value("loader_num_epochs"),
            "transformation": self._value("transformation_fn"),
        }

    def _training(self) -> LightningTraining:
        name, model, optimizer = type(self).__name__, self._value("model"), self._value("optimizer")
        losses = self._losses()
        if self._value("train_minibatch_fn") is not None:
            raise InvalidArgumentError(f"{name}: train_minibatch_fn has no use: write a training_step.")
        if is_lightning(model):
            given = [
                each
                for each in ("optimizer", "loss", "loss_constructors", "loss_weights", "metrics")
                if self._value(each)
            ]
            if given:
                raise InvalidArgumentError(
                    f"{name}: {', '.join(given)} must not be set: the LightningModule has its own."
                )
        elif optimizer is None or not losses:
            raise InvalidArgumentError(
                f"{name} needs optimizer and loss, as the model ({type(model).__name__}) is no "
                "LightningModule."
            )
        else:
            metric_groups(self._value("metrics"), self._value("label_cols"))
            self._check_arguments(model)
        return LightningTraining(
            model=PackedModule.of(model),
            optimizer=None if optimizer is None else PackedOptimizer.of(optimizer, model),
            losses=losses,
            **self._values("gradient_compression", "callbacks", "trainer_args", "logger"),
            **self._values("log_every_n_steps", "terminate_on_nan", "profiler"),
            steps=(self._value("train_steps_per_epoch"), self._value("validation_steps_per_epoch")),
        )

    def _run(self, *args: Any, **kwargs: Any) -> TrainingRun:
        run = super()._run(*args, **kwargs)
        if is_plain(run.data_module):
            check_plain(run.data_module, run.data_arguments)
        return run

    def _check_arguments(self, model: Any) -> None:
        """Check that a plain module takes arguments named like the features."""
        features = self._value("feature_cols") or ()
        try:
            inspect.signature(model.forward).bind(**dict.fromkeys(features))
        except TypeError as error:
            raise InvalidArgumentError(
                f"{type(model).__name__}.forward gets the features as arguments with the names of their "
                f"columns ({', '.join(features)}): {error}. Name its parameters so, or use a LightningModule."
            ) from None

    def _trained(self, training: LightningTraining, checkpoint: bytes) -> dict[str, Any]:
        model = training.model.module()
        state = from_bytes(checkpoint)["state_dict"]
        if not is_lightning(model):
            state = {name.removeprefix(PREFIX): value for name, value in state.items()}
        model.load_state_dict(state)
        return {"model": model}
