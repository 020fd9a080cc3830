"""PyTorch modules and optimizers as bytes, for the ranks and for files."""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from horovod.errors import InvalidArgumentError
from horovod.launch.calls.pickles import why_value_unpicklable
from horovod.spark.common.serialization import Saveable
from horovod.torch.instances import Plain

__all__ = [
    "PackedModule",
    "PackedOptimizer",
    "TorchSaveable",
    "as_bytes",
    "floating_dtype",
    "from_bytes",
    "prepared",
    "state_of_run",
]


def as_bytes(value: Any) -> bytes:
    """``torch.save`` of something that may have classes and functions of a notebook."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """Undo :func:`as_bytes`, with all tensors in host memory."""
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
        data: the optimizer, pickled, with numbers in the place of the parameters of its model.
    """

    data: bytes

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> PackedOptimizer:
        """
        Raises:
            InvalidArgumentError: it has parameters that the model has not.
        """
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        if any(
            id(parameter) not in numbers for group in optimizer.param_groups for parameter in group["params"]
        ):
            raise InvalidArgumentError(
                f"The optimizer ({type(optimizer).__name__}) has parameters that are not of the model "
                f"({type(model).__name__}). Make it with model.parameters()."
            )
        buffer = io.BytesIO()
        kind = getattr(type(optimizer), "_wrapped_class", type(optimizer))
        without = getattr(optimizer, "_of_wrapper", ())
        try:
            _OptimizerPickler(buffer, numbers).dump(Plain(optimizer, kind, without))
        except Exception as error:
            why = why_value_unpicklable("the optimizer", vars(optimizer)) or f"The optimizer: {error}"
            raise InvalidArgumentError(f"{why} Leave it out of the optimizer.") from error
        return cls(buffer.getvalue())

    def optimizer(self, model: torch.nn.Module) -> Any:
        """One like it for a copy of its model."""
        return _OptimizerUnpickler(io.BytesIO(self.data), list(model.parameters())).load()


class _OptimizerPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Writes numbers in the place of parameters, and other tensors as they are in host memory."""

    def __init__(self, file: Any, numbers: dict[int, int]) -> None:
        super().__init__(file)
        self._numbers = numbers

    def persistent_id(self, value: Any) -> int | None:
        return self._numbers.get(id(value)) if isinstance(value, torch.nn.Parameter) else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_cpu:
            return value.detach().cpu().__reduce_ex__(2)
        return super().reducer_override(value)


class _OptimizerUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(file)
        self._parameters = parameters

    def persistent_load(self, number: Any) -> torch.nn.Parameter:
        parameter: torch.nn.Parameter = self._parameters[number]
        return parameter


def prepared(tensor: Any, dtype: Any) -> Any:
    """Numbers as the model computes with them: of its precision if they are floating-point."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def floating_dtype(model: torch.nn.Module) -> torch.dtype:
    """Of the parameters of a module."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.get_default_dtype()


class TorchSaveable(Saveable):
    """Base of estimators and models that are saved with a module, and an optimizer over its parameters."""

    def _packed(self, values: dict[str, Any]) -> dict[str, Any]:
        found = dict(values)
        model, optimizer = found.get("model"), found.get("optimizer")
        if model is not None:
            found["model"] = PackedModule.of(model)
        if model is not None and optimizer is not None:
            found["optimizer"] = PackedOptimizer.of(optimizer, model)
        return found

    @classmethod
    def _unpacked(cls, values: dict[str, Any]) -> dict[str, Any]:
        found = dict(values)
        if isinstance(found.get("model"), PackedModule):
            found["model"] = found["model"].module()
        if isinstance(found.get("optimizer"), PackedOptimizer):
            found["optimizer"] = found["optimizer"].optimizer(found["model"])
        return found
