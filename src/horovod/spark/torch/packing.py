"""PyTorch modules and optimizers as bytes, for the ranks and for files."""

from __future__ import annotations

import inspect
import io
import pickle
import re
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from horovod.errors import InvalidArgumentError
from horovod.launch.calls.unpicklable import why_value_unpicklable

__all__ = ["PackedModule", "PackedOptimizer", "as_bytes", "from_bytes", "packed", "state_of_run", "unpacked"]


def as_bytes(value: Any) -> bytes:
    """``torch.save`` of something that may have classes and functions of a notebook."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """What :func:`as_bytes` was given, with all tensors in host memory."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def state_of_run(data: bytes, run_id: str) -> Any:
    """The checkpoint of an earlier run. It comes from a store, to which others may write: it may have tensors
    and plain values only, and classes that :func:`torch.serialization.add_safe_globals` was told of.

    Raises:
        InvalidArgumentError: it has something else, or is no checkpoint.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        said = re.search(r"GLOBAL (\S+)", str(error))
        first_line = str(error).partition("\n")[0]
        what = f"It refers to {said[1]}" if said else f"{type(error).__name__}: {first_line}"
        raise InvalidArgumentError(
            f"The checkpoint of run {run_id} has more than tensors and plain values, or is damaged. {what}. "
            "If you trust all who can write to the store, let the module of your model call "
            "torch.serialization.add_safe_globals() with its classes. Or choose another run_id, or none."
        ) from error


@dataclass(frozen=True)
class PackedModule:
    """A module, or a program of TorchScript."""

    data: bytes
    script: bool

    @classmethod
    def of(cls, module: torch.nn.Module) -> PackedModule:
        """
        Raises:
            InvalidArgumentError: it cannot be pickled; says which part.
        """
        if not isinstance(module, torch.jit.ScriptModule):
            try:
                return cls(as_bytes(module), script=False)
            except Exception as error:
                why = why_value_unpicklable("the model", module) or f"the model cannot be pickled: {error}"
                raise InvalidArgumentError(f"{why} Leave it out of the model.") from error
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        return cls(buffer.getvalue(), script=True)

    def module(self) -> Any:
        """A copy of it, in host memory."""
        if self.script:
            return torch.jit.load(io.BytesIO(self.data), map_location="cpu")
        return from_bytes(self.data)


@dataclass(frozen=True)
class PackedOptimizer:
    """An optimizer, without the parameters of its model.

    Attributes:
        kind: its class, pickled.
        groups: for each of its groups, which parameters of the model it has, by their numbers.
        arguments: that its class is called with.
        state: its ``state_dict``, pickled.
    """

    kind: bytes
    groups: tuple[tuple[int, ...], ...]
    arguments: dict[str, Any]
    state: bytes

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> PackedOptimizer:
        """
        Raises:
            InvalidArgumentError: it has parameters that the model has not.
        """
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        try:
            groups = tuple(
                tuple(numbers[id(parameter)] for parameter in group["params"])
                for group in optimizer.param_groups
            )
        except KeyError:
            raise InvalidArgumentError(
                f"The optimizer ({type(optimizer).__name__}) has parameters that are not of the model "
                f"({type(model).__name__}). Make it with model.parameters()."
            ) from None
        accepted = inspect.signature(type(optimizer)).parameters
        arguments = {name: value for name, value in optimizer.defaults.items() if name in accepted}
        kind = cloudpickle.dumps(type(optimizer))
        return cls(kind, groups, arguments, as_bytes(optimizer.state_dict()))

    def optimizer(self, model: torch.nn.Module) -> Any:
        """One like it for a copy of its model."""
        parameters = list(model.parameters())
        groups = [{"params": [parameters[number] for number in group]} for group in self.groups]
        made = cloudpickle.loads(self.kind)(groups, **self.arguments)
        made.load_state_dict(from_bytes(self.state))
        return made


def packed(values: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator or model, with module and optimizer packed."""
    found = dict(values)
    model, optimizer = found.get("model"), found.get("optimizer")
    if model is not None:
        found["model"] = PackedModule.of(model)
    if model is not None and optimizer is not None:
        found["optimizer"] = PackedOptimizer.of(optimizer, model)
    return found


def unpacked(values: dict[str, Any]) -> dict[str, Any]:
    """What :func:`packed` was given."""
    found = dict(values)
    if isinstance(found.get("model"), PackedModule):
        found["model"] = found["model"].module()
    if isinstance(found.get("optimizer"), PackedOptimizer):
        found["optimizer"] = found["optimizer"].optimizer(found["model"])
    return found
