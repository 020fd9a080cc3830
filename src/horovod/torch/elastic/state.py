"""``TorchState``: models, optimizers, samplers and plain objects as one elastic state."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch

from horovod.elastic.state import ObjectState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from horovod.torch.mpi_ops import broadcast, rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]

_broadcast = functools.partial(broadcast_object, root_rank=0, name="elastic.state")


class StateHandler:
    """How one kind of object is saved, restored and made equal on all ranks. ``value`` is the object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keep a copy of the present state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the live state of rank 0. A collective."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle another object from now on, and save it."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """For objects with ``state_dict`` and ``load_state_dict``: a deep copy of the former is what is saved."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # Some objects keep what they load, and go on to change it in place.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """A ``torch.nn.Module``: parameters and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_StateDictHandler):
    """A ``torch.optim.Optimizer``, distributed or not: options and state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_StateDictHandler):
    """An :class:`ElasticSampler`: what is processed; loading it distributes the rest over the ranks."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def sync(self) -> None:
        self.value.load_state_dict(_broadcast(self.value.state_dict()))


_registry: list[tuple[type[Any], type[Any]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type[Any], type[Any]]]:
    """Pairs of a type and the handler for its instances; the first one that fits is used."""
    return _registry


def set_handler_registry(registry: Sequence[tuple[type[Any], type[Any]]]) -> None:
    """Replace the pairs; for states that are made from now on."""
    global _registry
    _registry = list(registry)


class TorchState(ObjectState):
    """State of a training program: ``model``, ``optimizer`` and any number of further keywords.

    Models, optimizers and :class:`ElasticSampler` are deeply copied when saved and broadcast as they are;
    everything else is a plain attribute of an :class:`~horovod.elastic.state.ObjectState`. Assigning another
    model, optimizer or sampler to its attribute replaces and saves it at once.

    After :meth:`sync` the state of rank 0 is what counts as saved, on every rank: one that fails before its
    next commit goes back there, not to what it started with.

    Args:
        model: ``None``, or what is broadcast and saved as ``state.model``.
        optimizer: ``None``, or the optimizer, as ``state.optimizer``.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.update(model=model, optimizer=optimizer)
        handlers: dict[str, StateHandler] = {}
        plain: dict[str, Any] = {}
        for name, value in kwargs.items():
            for kind, handler in _registry:
                if isinstance(value, kind):
                    handlers[name] = handler(value)
                    break
            else:
                plain[name] = value
        self._handlers = handlers
        for name, handled in handlers.items():
            object.__setattr__(self, name, handled.value)
        super().__init__(bcast_object=_broadcast, get_rank=rank, **plain)

    def _agree(self, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
        known, newest, kinds = broadcast(torch.tensor(numbers), 0, name="elastic.hosts").tolist()
        return known, newest, kinds

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        for handler in self._handlers.values():  # not before all has come: what is saved is of one moment
            handler.save()

    def reset(self) -> None:
        """Distribute what is left of the epoch over the ranks of now: a removal of hosts skips :meth:`sync`,
        and nobody would do the part of those that are gone.
        """
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
        super().reset()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
