"""Modules that are imported when a case first uses them: the process that only reads the tables needs none
of them, and ranks choose by their environment which Keras it is."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    def __init__(self, module: str, attribute: str = "") -> None:
        self._where = module, attribute

    def __getattr__(self, name: str) -> Any:
        module, attribute = self._where
        found: Any = importlib.import_module(module)
        return getattr(getattr(found, attribute) if attribute else found, name)


keras: Any = Lazy("keras")
hvd: Any = Lazy("horovod.keras")
tf: Any = Lazy("tensorflow")
tf_keras: Any = Lazy("tensorflow", "keras")  # of either generation
tf_hvd: Any = Lazy("horovod.tensorflow.keras")


def backend() -> str:
    name: str = keras.backend.backend()
    return name
