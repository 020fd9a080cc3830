"""``TorchEstimator``: trains a PyTorch module on a DataFrame."""

from __future__ import annotations

from typing import Any

from horovod.errors import InvalidArgumentError
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.params import Parameter, parameters, positive
from horovod.spark.common.util import to_list
from horovod.spark.torch.datamodule import ParquetDataModule
from horovod.spark.torch.losses import Losses, metric_groups
from horovod.spark.torch.model import TorchModel
from horovod.spark.torch.packing import PackedModule, PackedOptimizer, TorchSaveable, from_bytes
from horovod.spark.torch.training import TorchTraining

__all__ = ["TorchEstimator", "TorchLosses"]

LOSSES = (
    Parameter("loss", None, "function of output and label, or module; or a list with one for each label"),
    Parameter("loss_constructors", None, "functions that make the losses on the ranks, instead of loss"),
    Parameter(
        "metrics", [], "groups: each a function of output and label, or a list with one for each label"
    ),
    Parameter("input_shapes", None, "shapes of the features of a row, one for each feature"),
)


@parameters(LOSSES)
class TorchLosses(TorchSaveable, HorovodEstimator):
    """Base of the estimators for PyTorch, with their losses."""

    run_prefix = "pytorch"

    def _steps(self, rows: int, rows_of_a_step: int) -> int:
        return rows // rows_of_a_step

    def _shapes(self) -> dict[str, Any]:
        return self._values("input_shapes", "label_shapes")

    def _losses(self) -> Losses:
        """
        Raises:
            InvalidArgumentError: both kinds are set; their number, or that of weights, is not that of labels.
        """
        if self._value("loss") is not None and self._value("loss_constructors") is not None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: loss and loss_constructors are both set. Leave one of them out."
            )
        weights, labels = self._value("loss_weights"), self._value("label_cols")
        if weights is not None and len(weights) != len(labels):
            raise InvalidArgumentError(
                f"loss_weights has {len(weights)} numbers for {len(labels)} labels: {', '.join(labels)}."
            )
        functions, constructors = map(self._one_for_each_label, ("loss", "loss_constructors"))
        return Losses(functions, constructors, weights, self._value("metrics"))

    def _one_for_each_label(self, parameter: str) -> list[Any] | None:
        value, labels = self._value(parameter), self._value("label_cols")
        single = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        try:
            return to_list(single, len(labels))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{parameter} must be one for all labels ({', '.join(labels)}), or one for each: {error}"
            ) from None

    def _get_model_kwargs(
        self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any
    ) -> dict[str, Any]:
        return {
            **super()._get_model_kwargs(model, history, optimizer, run_id, metadata),
            **self._values("input_shapes", "loss", "loss_constructors"),
        }


TORCH = (
    Parameter("optimizer", None, "of torch.optim, over parameters of the model"),
    Parameter("gradient_compression", None, "one of horovod.torch.Compression"),
    Parameter("backward_passes_per_step", 1, "batches whose gradients are summed for a step", positive),
    Parameter(
        "train_minibatch_fn",
        None,
        "trains on a batch: (model, optimizer, transform_outputs, loss_fn, inputs, labels, sample_weights, "
        "backward_passes_per_step, batch_idx) -> (outputs, loss)",
    ),
    Parameter(
        "callbacks", [], "functions of the record of an epoch and the model, called on every rank after it"
    ),
)


@parameters(TORCH)
class TorchEstimator(TorchLosses):
    """Trains a PyTorch module, also one of TorchScript, in several processes; :meth:`fit` returns a
    :class:`TorchModel`.

    Features are the arguments of the module, in their order: tensors ``[batch]`` for columns of numbers,
    ``[batch, n]`` for arrays and vectors, ``[batch, *shape]`` with ``input_shapes``. What is floating-point
    has the precision of the module's parameters.
    """

    default_data_module = ParquetDataModule

    def get_model_class(self) -> Any:
        return TorchModel

    def _training(self) -> TorchTraining:
        name = type(self).__name__
        model, optimizer = self._value("model"), self._value("optimizer")
        if optimizer is None:
            raise InvalidArgumentError(f"{name} needs optimizer: one of torch.optim over model.parameters().")
        losses = self._losses()
        if not losses and self._value("train_minibatch_fn") is None:
            raise InvalidArgumentError(f"{name} needs loss, loss_constructors or train_minibatch_fn.")
        metric_groups(self._value("metrics"), self._value("label_cols"))
        return TorchTraining(
            model=PackedModule.of(model),
            optimizer=PackedOptimizer.of(optimizer, model),
            losses=losses,
            **self._values(
                "gradient_compression", "backward_passes_per_step", "train_minibatch_fn", "callbacks"
            ),
        )

    def _trained(self, training: TorchTraining, checkpoint: bytes) -> dict[str, Any]:
        state = from_bytes(checkpoint)
        model = training.model.module()
        model.load_state_dict(state["model"])
        optimizer = training.optimizer.optimizer(model)
        optimizer.load_state_dict(state["optimizer"])
        return {"model": model, "optimizer": optimizer}
