"""``KerasModel``: applies a trained Keras model to a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from horovod.spark.common.model import HorovodModel, Predict, Predictor
from horovod.spark.common.params import Parameter, parameters
from horovod.spark.keras.packing import KerasSaveable, KerasSetting, as_bytes, from_bytes, takes_text
from horovod.spark.keras.training import model_inputs

__all__ = ["KerasModel", "KerasPredictor"]


@dataclass(frozen=True)
class KerasPredictor(Predictor):
    """
    Attributes:
        features: columns, in the order of the model's inputs.
    """

    setting: KerasSetting
    model: bytes
    custom_objects: Mapping[str, Any]
    features: tuple[str, ...]

    def open_model(self) -> Any:
        self.setting.apply()
        load = self.setting.module().saving.load_model
        return from_bytes(self.model, load, custom_objects=self.custom_objects, compile=False)

    def open(self) -> Predict:
        model = self.open_model()
        if self.setting.legacy:
            import tensorflow

            device, to_numpy = tensorflow.device, np.asarray
        else:
            import keras

            device, to_numpy = keras.device, keras.ops.convert_to_numpy

        def predict(arrays: list[Any]) -> list[Any]:
            with device("cpu:0"):
                found = model(model_inputs(model, self.features, arrays), training=False)
            outputs = list(found.values()) if isinstance(found, dict) else found
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            return [to_numpy(output) for output in outputs]

        return predict


KERAS_MODEL = (
    Parameter("custom_objects", {}, "classes and functions of the model by their names"),
    Parameter("_floatx", None, "floating-point type of Keras in training", accessors=False),
)


@parameters(KERAS_MODEL)
class KerasModel(KerasSaveable, HorovodModel):
    """A trained Keras model. ``transform`` adds a column with its output for each label."""

    def _predictor(self) -> Predictor:
        setting = KerasSetting.of(self._value("model"))
        return KerasPredictor(
            replace(setting, floatx=self._value("_floatx") or setting.floatx),
            as_bytes(self._value("model")),
            self._value("custom_objects"),
            tuple(self._value("feature_columns")),
        )

    def _takes_text(self, name: str) -> bool:
        return takes_text(self._value("model"), self._value("feature_columns"), name)
