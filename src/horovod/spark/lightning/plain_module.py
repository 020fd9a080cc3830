"""Data modules of Lightning that were written without estimators in mind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horovod.errors import InvalidArgumentError

__all__ = ["PlainModule", "check_plain", "is_plain"]


def is_plain(given: Any) -> bool:
    """Return whether it is a LightningDataModule, or a class of such, that is no context manager."""
    kind = given if isinstance(given, type) else type(given)
    of_lightning = any(base.__name__ == "LightningDataModule" for base in kind.__mro__)
    return of_lightning and not hasattr(kind, "__enter__")


def check_plain(given: Any, known: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidArgumentError: its class wants arguments that an estimator does not have.
    """
    if not isinstance(given, type):
        return
    wanted = [
        name
        for name, parameter in inspect.signature(given).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in {*known, "cur_shard", "shard_count"}
    ]
    if wanted:
        raise InvalidArgumentError(
            f"data_module: {given.__name__} needs arguments that an estimator does not have: "
            f"{', '.join(wanted)}. Pass an instance, data_module={given.__name__}(...)."
        )


@dataclass(frozen=True)
class PlainModule:
    """
    Attributes:
        module: for the trainer.
        shards: whether it takes the batches of its rank alone. Otherwise the trainer gives its loaders a
            sampler that does.
    """

    module: Any
    shards: bool

    @classmethod
    def of(cls, given: Any, arguments: Mapping[str, Any]) -> PlainModule:
        """Make it, with those arguments that its class has by name; or take the instance."""
        if not isinstance(given, type):
            return cls(given, shards=False)
        parameters = inspect.signature(given).parameters
        known = {name: value for name, value in arguments.items() if name in parameters}
        return cls(given(**known), shards="cur_shard" in known)
