"""The frameworks that Keras computes with: their contract, and the module that fulfils it for each."""

from __future__ import annotations

import importlib
from typing import Final

from horovod._keras.frameworks.contract import Framework
from horovod.errors import InvalidArgumentError

__all__ = ["Framework", "framework"]

# Keras's name of a framework -> the module whose ADAPTER is its `Framework`. These are names, as only the
# framework in use is to be imported, and the modules of a framework import this package.
_ADAPTERS: Final = {
    "tensorflow": "horovod.tensorflow.keras_adapter",
    "torch": "horovod.torch.keras_adapter",
    "jax": "horovod._keras.frameworks.jax",
}


def framework(name: str) -> Framework:
    """Load the adapter of a framework.

    Args:
        name: what ``keras.backend.backend()`` says.

    Raises:
        ValueError: a framework whose tensors Horovod does not know.
    """
    module = _ADAPTERS.get(name)
    if module is None:
        raise InvalidArgumentError(
            f"Keras computes with {name!r}, which Horovod cannot exchange gradients for. Choose tensorflow, "
            "torch or jax, for example by the environment variable KERAS_BACKEND."
        )
    adapter: Framework = importlib.import_module(module).ADAPTER
    return adapter
