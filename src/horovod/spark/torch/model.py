"""``TorchModel``: applies a trained PyTorch module to a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.spark.common.model import HorovodModel, Predict, Predictor
from horovod.spark.common.params import Parameter, parameters
from horovod.spark.common.training import row_shape
from horovod.spark.torch.losses import as_list
from horovod.spark.torch.packing import PackedModule, TorchSaveable, floating_dtype, prepared

__all__ = ["TorchModel", "TorchPredictor"]


@dataclass(frozen=True)
class TorchPredictor(Predictor):
    """
    Attributes:
        shapes: of the features of a row; None: as they come.
        names: of the arguments of the module; empty: it takes them in their order.
    """

    model: PackedModule
    shapes: Sequence[tuple[int, ...]] | None
    names: tuple[str, ...] = ()

    def open_model(self) -> Any:
        model = self.model.module()
        model.eval()
        return model

    def open(self) -> Predict:
        model = self.open_model()
        dtype = floating_dtype(model)

        def predict(arrays: list[Any]) -> list[Any]:
            inputs = [prepared(torch.as_tensor(array), dtype) for array in arrays]
            if self.shapes is not None:
                inputs = [
                    each.reshape((len(each), *shape)) for each, shape in zip(inputs, self.shapes, strict=True)
                ]
            with torch.no_grad():
                found = model(**dict(zip(self.names, inputs, strict=True))) if self.names else model(*inputs)
            return as_list(found)

        return predict


TORCH_MODEL = (
    Parameter("input_shapes", None, "shapes of the features of a row, one for each feature"),
    Parameter("optimizer", None, "as it was after training, over the parameters of the model"),
    Parameter("loss", None, "that it was trained with"),
    Parameter("loss_constructors", None, "that made its losses"),
)


@parameters(TORCH_MODEL)
class TorchModel(TorchSaveable, HorovodModel):
    """A trained PyTorch module. ``transform`` adds a column with its output for each label."""

    def _predictor(self) -> Predictor:
        shapes = self._value("input_shapes")
        return TorchPredictor(
            PackedModule.of(self._value("model")), None if shapes is None else list(map(row_shape, shapes))
        )
