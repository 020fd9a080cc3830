"""Packages of Lightning: ``lightning.pytorch``, ``pytorch_lightning``, and the one that a module is from."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import Any

__all__ = ["installed", "is_lightning", "package_of"]

_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def installed() -> Any:
    """``lightning.pytorch`` if it is there, otherwise ``pytorch_lightning``.

    Raises:
        ModuleNotFoundError: neither is installed.
    """
    for name, module in _PACKAGES.items():
        if importlib.util.find_spec(name) is not None:
            return import_module(module)
    raise ModuleNotFoundError(
        "horovod.spark.lightning needs Lightning 2, which is not installed here: pip install lightning",
        name="lightning",
    )


def is_lightning(module: Any) -> bool:
    """Return whether ``module`` is a LightningModule, of either package."""
    return _name(module) is not None


def package_of(module: Any) -> Any:
    """The package whose ``Trainer`` takes the module; for a plain one the one that is installed."""
    name = _name(module)
    return installed() if name is None else import_module(_PACKAGES[name])


def _name(module: Any) -> str | None:
    for base in type(module).__mro__:
        name = base.__module__.partition(".")[0]
        if name in _PACKAGES and base.__name__ == "LightningModule":
            return name
    return None
