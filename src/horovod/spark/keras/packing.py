"""Keras models as bytes, for the ranks and for files. Keras is imported when it is needed: executors must
know first what it is to compute with."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from horovod import requirements
from horovod.errors import ConfigError

__all__ = ["SUFFIX", "KerasSetting", "as_bytes", "from_bytes", "names_of"]

SUFFIX = ".keras"
_BACKEND = "KERAS_BACKEND"


@dataclass(frozen=True)
class KerasSetting:
    """What Keras computes with, and its floating-point type."""

    backend: str
    floatx: str

    @classmethod
    def here(cls) -> KerasSetting:
        """That of this process."""
        requirements.require_keras("horovod.spark.keras")
        import keras

        return cls(keras.backend.backend(), keras.config.floatx())

    def environment(self) -> dict[str, str | None]:
        """Variables for a process that has not imported Keras."""
        return {_BACKEND: self.backend}

    def apply(self) -> None:
        """Make Keras of this process the same.

        Raises:
            ConfigError: it computes with something else already.
        """
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


def as_bytes(model: Any) -> bytes:
    """A model in Keras' own format, with its optimizer if it was compiled."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, f"model{SUFFIX}")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def from_bytes(data: bytes, load: Callable[..., Any], **options: Any) -> Any:
    """What :func:`as_bytes` was given, by a function that takes a path and ``options``."""
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
            if not named.__module__.startswith("keras."):
                found[named.__name__] = named
    return found
