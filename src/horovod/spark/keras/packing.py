"""Keras models as bytes, for the ranks and for files. Keras is imported when it is needed: executors must
know first what it is to compute with."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from horovod import requirements
from horovod.errors import ConfigError
from horovod.spark.common.serialization import Saveable

__all__ = [
    "SUFFIX",
    "KerasSaveable",
    "KerasSetting",
    "LegacyOptimizer",
    "as_bytes",
    "from_bytes",
    "is_legacy",
    "names_of",
    "takes_text",
]

SUFFIX = ".keras"
_BACKEND = "KERAS_BACKEND"
_LEGACY = "tf_keras"


@dataclass(frozen=True)
class KerasSetting:
    """Backend of Keras and its floating-point type.

    Attributes:
        legacy: it is Keras 2, the package ``tf_keras``, and no Keras 3.
    """

    backend: str
    floatx: str
    legacy: bool = False

    @classmethod
    def of(cls, model: Any) -> KerasSetting:
        """Return the one of this process, for the generation of Keras that the model is of."""
        if is_legacy(model):
            return cls("tensorflow", sys.modules[_LEGACY].backend.floatx(), legacy=True)
        requirements.require_keras("horovod.spark.keras")
        import keras

        return cls(keras.backend.backend(), keras.config.floatx())

    def environment(self) -> dict[str, str | None]:
        """Variables for a process that has not imported Keras."""
        return {"TF_USE_LEGACY_KERAS": "1"} if self.legacy else {_BACKEND: self.backend}

    def module(self) -> Any:
        """Keras, of the generation of the model."""
        return import_module(_LEGACY if self.legacy else "keras")

    def apply(self) -> None:
        """Make Keras of this process the same.

        Raises:
            ConfigError: it computes with something else already.
        """
        if self.legacy:
            self.module().backend.set_floatx(self.floatx)
            return
        if "keras" not in sys.modules:
            os.environ[_BACKEND] = self.backend
        import keras

        if keras.backend.backend() != self.backend:
            raise ConfigError(
                f"The model was made with {_BACKEND}={self.backend}, and this process has Keras with "
                f"{keras.backend.backend()} already. Use one of them in a session.",
                variable=_BACKEND,
            )
        keras.config.set_floatx(self.floatx)


def is_legacy(model: Any) -> bool:
    """Return whether a model is one of ``tf_keras``."""
    package = sys.modules.get(_LEGACY)
    return package is not None and isinstance(model, package.Model)


@dataclass(frozen=True)
class LegacyOptimizer:
    """An optimizer of ``tf_keras``, which cannot be pickled: it has variables."""

    kind: type
    config: dict[str, Any]

    def optimizer(self) -> Any:
        return self.kind.from_config(self.config)  # type: ignore[attr-defined]


def as_bytes(model: Any) -> bytes:
    """A model in Keras' own format, with its optimizer if it was compiled."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, f"model{SUFFIX}")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def from_bytes(data: bytes, load: Callable[..., Any], **options: Any) -> Any:
    """Undo :func:`as_bytes`, by ``load``, a function that takes a path and ``options``."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, f"model{SUFFIX}")
        with open(path, "wb") as file:
            file.write(data)
        return load(path, **options)


def names_of(*values: Any) -> dict[str, Any]:
    """Functions and classes of users among losses and metrics, by the names that files have for them."""
    found: dict[str, Any] = {}
    for value in values:
        if isinstance(value, Mapping):
            found.update(names_of(*value.values()))
        elif isinstance(value, (list, tuple)):
            found.update(names_of(*value))
        elif callable(value):
            named = value if hasattr(value, "__name__") else type(value)
            if not named.__module__.startswith(("keras.", f"{_LEGACY}.")):
                found[named.__name__] = named
    return found


def takes_text(model: Any, features: Sequence[str], name: str) -> bool:
    """Return whether the input of a model for this feature has texts. A model that does not say takes any."""
    inputs = getattr(model, "inputs", None)
    if name not in features:
        return False
    if not inputs or len(inputs) != len(features):
        return True
    return "string" in str(inputs[list(features).index(name)].dtype)


@dataclass(frozen=True)
class _PackedModel:
    """A model in a file of parameters."""

    setting: KerasSetting
    data: bytes
    custom_objects: Mapping[str, Any]

    def model(self) -> Any:
        self.setting.apply()
        load = self.setting.module().saving.load_model
        return from_bytes(self.data, load, custom_objects=self.custom_objects)


class KerasSaveable(Saveable):
    """Base of estimators and models that are saved with a Keras model."""

    def _packed(self, values: dict[str, Any]) -> dict[str, Any]:
        model = values.get("model")
        if model is None:
            return values
        named = names_of(values.get("loss"), values.get("metrics"))
        names = {**named, **(values.get("custom_objects") or {})}
        return {**values, "model": _PackedModel(KerasSetting.of(model), as_bytes(model), names)}

    @classmethod
    def _unpacked(cls, values: dict[str, Any]) -> dict[str, Any]:
        model = values.get("model")
        return {**values, "model": model.model()} if isinstance(model, _PackedModel) else values
