"""The frameworks that Keras computes with, one file each; imported when Keras names it."""

from __future__ import annotations

from horovod._keras.frameworks.contract import Framework, Settings
from horovod.errors import InvalidArgumentError

__all__ = ["Framework", "Settings", "framework"]


def framework(name: str) -> Framework:
    """
    Args:
        name: what ``keras.backend.backend()`` says.

    Raises:
        ValueError: a framework whose tensors Horovod does not know.
    """
    # Only the one that is used: importing another would load a framework that may not be there.
    if name == "tensorflow":
        from horovod.tensorflow.keras_adapter import TENSORFLOW

        return TENSORFLOW
    if name == "torch":
        from horovod.torch.keras_adapter import TORCH

        return TORCH
    if name == "jax":
        from horovod._keras.frameworks.jax import JAX

        return JAX
    raise InvalidArgumentError(
        f"Keras computes with {name!r}, which Horovod cannot exchange gradients for. Choose tensorflow, "
        "torch or jax, for example by the environment variable KERAS_BACKEND."
    )
