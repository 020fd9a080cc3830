"""``TorchState``: models, optimizers, samplers and plain objects as one elastic state."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from horovod.elastic.state import ObjectState
from horovod.torch.elastic.copies import Copies, Lent
from horovod.torch.elastic.random_state import RandomState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from horovod.torch.mpi_ops import barrier, broadcast, rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "RandomStateHandler",
    "SamplerStateHandler",
    "ScalerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]

_broadcast = functools.partial(broadcast_object, root_rank=0, name="elastic.state")


class StateHandler:
    """Handler of one kind of object, which saves it, restores it and makes it equal on all ranks. ``value``
    is the object.
    """

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

    def keep_synced(self) -> None:
        """:meth:`sync` has ended well: keep a copy of that; the last one is wanted no more."""
        self.save()

    def set_value(self, value: Any) -> None:
        """Handle another object from now on, and save it."""
        self.value = value
        self.save()


class _CopyHandler(StateHandler):
    """Handler that saves copies of a state dict. Saving has two steps: it fails for all or for none."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._copies = Copies()
        self.save()

    def save(self) -> None:
        self.prepare()
        self.adopt()

    def prepare(self) -> None:
        """Make the copy."""
        self._copies.prepare(self.value.state_dict())

    def adopt(self) -> None:
        """Let it be the last one; cannot fail."""
        self._copies.adopt()

    def keep_synced(self) -> None:
        self._copies.renew(self.value.state_dict())

    def lend_saved(self) -> Lent | None:
        """Let other ranks of the host have what is saved, if that is known to be equal to what is live."""
        return self._copies.lend(self.value.state_dict())

    def borrow_saved(self, lent: Lent | None) -> None:
        """Prepare to have rank 0's copy, too, for :meth:`keep_synced`: the live state is that of rank 0.
        After ``None`` :meth:`keep_synced` makes a copy.
        """
        self._copies.borrow(self.value.state_dict(), lent)

    def settle_saved(self) -> None:
        """Note that everybody who wants the lent memory has it."""
        self._copies.settle()

    def note_saved(self) -> None:
        """Note that the saved state is equal to the live one now."""
        self._copies.note_equal(self.value.state_dict())

    def forget_saved(self) -> None:
        """Forget that the saved state is equal to the live one."""
        self._copies.forget_equal()

    def restore(self) -> None:
        # Some objects keep what they load, and go on to change it in place.
        self.value.load_state_dict(self._copies.fresh())


class StateDictHandler(_CopyHandler):
    """Anything with ``state_dict`` and ``load_state_dict`` that is equal on all ranks: schedulers of learning
    rates, gradient scalers, ``StatefulDataLoader``."""

    def sync(self) -> None:
        self.value.load_state_dict(_broadcast(self.value.state_dict()))


class ScalerStateHandler(StateDictHandler):
    """A ``torch.amp.GradScaler``. Its state dict does not say which optimizers it has unscaled or stepped
    since its last update: after going back, none."""

    def restore(self) -> None:
        super().restore()
        self._begin_step()

    def sync(self) -> None:
        super().sync()
        self._begin_step()

    def _begin_step(self) -> None:
        self.value._per_optimizer_states.clear()  # nothing public does this without an update


class ModelStateHandler(_CopyHandler):
    """A ``torch.nn.Module``: parameters and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_CopyHandler):
    """A ``torch.optim.Optimizer``, distributed or not: options and state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def restore(self) -> None:
        super().restore()
        self.value.zero_grad()  # those of the step that failed: scripts may clear them after a step only

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(StateDictHandler):
    """An :class:`ElasticSampler`: what is processed; loading it distributes the rest over the ranks."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)


class RandomStateHandler(StateHandler):
    """A :class:`RandomState`, which has a copy of its own."""

    def __init__(self, value: RandomState) -> None:
        super().__init__(value)
        if value.seed is None:
            value.save()

    def save(self) -> None:
        self.value.save()

    def restore(self) -> None:
        self.value.restore()

    def sync(self) -> None:
        self.value.sync(_broadcast, rank())

    def keep_synced(self) -> None:
        """Do nothing: the value has kept its state, and to save would count as a commit."""


_registry: list[tuple[type[Any], type[Any]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateDictHandler),
    (getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), ScalerStateHandler),
    (RandomState, RandomStateHandler),
]


def get_handler_registry() -> list[tuple[type[Any], type[Any]]]:
    """Pairs of a type and the handler for its instances; the first one that fits is used."""
    return _registry


def set_handler_registry(registry: Sequence[tuple[type[Any], type[Any]]]) -> None:
    """Replace the pairs; for states that are made from now on."""
    global _registry
    _registry = list(registry)


def _handler_of(value: Any) -> type[Any] | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler
    stateful = all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
    return StateDictHandler if stateful and not isinstance(value, type) else None


class TorchState(ObjectState):
    """State of a training program: ``model``, ``optimizer`` and any number of further keywords.

    Models, optimizers, :class:`ElasticSampler`, :class:`RandomState` and all other objects with
    ``state_dict`` and ``load_state_dict``, such as schedulers and stateful loaders, are deeply copied when
    saved and broadcast as they are; everything else is a plain attribute of an
    :class:`~horovod.elastic.state.ObjectState`. Assigning another model, optimizer or such object to its
    attribute replaces and saves it at once.

    Copies take turns in two sets of memory, on the device of what they copy: a commit that fails half-way
    leaves the last one whole.

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
            handler = _handler_of(value)
            if handler is None:
                plain[name] = value
            else:
                handlers[name] = handler(value)
        self._handlers = handlers
        for name, handled in handlers.items():
            object.__setattr__(self, name, handled.value)
        self._connect()
        super().__init__(bcast_object=_broadcast, get_rank=rank, **plain)

    def _agree(self, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
        known, newest, kinds = broadcast(torch.tensor(numbers), 0, name="elastic.hosts").tolist()
        return known, newest, kinds

    def save(self) -> None:
        prepared = [handler for handler in self._handlers.values() if isinstance(handler, _CopyHandler)]
        for handler in prepared:
            handler.prepare()
        for other in self._handlers.values():
            if not isinstance(other, _CopyHandler):
                other.save()
        super().save()
        for handler in prepared:
            handler.adopt()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()
        self._note_saved()

    def _note_saved(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, _CopyHandler):
                handler.note_saved()

    def _forget_saved(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, _CopyHandler):
                handler.forget_saved()

    def sync(self) -> None:
        """Take over the state of rank 0. A collective.

        Raises:
            HorovodInternalError: rank 0 syncs another state; or the world failed.
        """
        is_root = self._rank() == 0
        copied = self._equal_copies()
        lent = {name: each.lend_saved() for name, each in copied.items()} if is_root else {}
        lent = self._meet([*self._handlers, *self._saved_state], lent)
        if not is_root:
            self._forget_saved()  # broadcasts write to tensors, and PyTorch does not know
        for handler in self._handlers.values():
            handler.sync()
        for name, each in copied.items():
            each.borrow_saved(None if is_root else lent.get(name))
        if any(lent.values()):
            barrier()  # before it rank 0 must not write to what the others are about to have
            if is_root:
                for each in copied.values():
                    each.settle_saved()
        super().sync()
        for handler in self._handlers.values():  # not before all has come: what is saved is of one moment
            handler.keep_synced()

    def _equal_copies(self) -> dict[str, _CopyHandler]:
        """Return the handlers whose tensors are all equal on all ranks after a sync, whatever subclasses may
        do.
        """
        return {
            name: each
            for name, each in self._handlers.items()
            if isinstance(each, _CopyHandler) and type(each) in (ModelStateHandler, OptimizerStateHandler)
        }

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
            self._connect()

    def _connect(self) -> None:
        """Let samplers say where an epoch goes on, to the random generators of this state."""
        values = [handler.value for handler in self._handlers.values()]
        random = [value for value in values if isinstance(value, RandomState)]

        def resumed() -> None:
            for each in random:
                each.take_back_loader()

        for value in values:
            if isinstance(value, ElasticSampler):
                value.resumed = resumed if random else None
