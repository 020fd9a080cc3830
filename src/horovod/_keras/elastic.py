"""Elastic training with Keras: the state of a model and its optimizer, and callbacks that keep it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from horovod._keras.classes import callback_class
from horovod._keras.copies import VariableCopies
from horovod._keras.frameworks import Framework
from horovod._keras.iterators import Positions, is_iterator
from horovod._keras.variables import all_variables, broadcast_arrays, broadcast_object
from horovod.common.everywhere import init, shutdown
from horovod.elastic.run import run_fn
from horovod.elastic.state import ObjectState
from horovod.errors import InvalidArgumentError
from horovod.gradients.replicas import broadcasts, references
from horovod.gradients.variables import kept_apart
from horovod.runtime import lifecycle

__all__ = ["ModelState", "elastic_classes", "runner"]


class ModelState(ObjectState):
    """A Keras model, its optimizer and any number of further keywords, which become attributes.

    :meth:`save` keeps copies of all variables in host memory, in two sets that take turns: one that fails
    half-way leaves the last one whole. :meth:`sync` takes over the live variables of
    rank 0, and what it has saved of the other attributes.

    The seed generators of Keras 3, of dropout and its like, are saved and restored, too; where Keras computes
    with PyTorch, its default generators as well. :meth:`sync` leaves each rank its own seeds, with the
    counters of rank 0: a process that takes the place of a lost one, with the same seed, draws what that
    would have drawn.

    The sums of ``backward_passes_per_step`` are saved and restored. :meth:`sync` leaves a rank that has saved
    as often as rank 0 its own.

    A ``tf.data`` iterator among the keywords is saved with its position. :meth:`sync` leaves a rank that has
    saved as often as rank 0 its own; others take over that of rank 0.

    Args:
        model: built.
        optimizer: by default that of the model. One that has no state yet gets it here, so that nothing has
            to be trained before.
        backend: ``keras.backend``; tells what draws random numbers.

    Raises:
        ValueError: the model has no variables yet, there is no optimizer, or the position of an iterator
            cannot be saved.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", False) or not model.weights:
            raise InvalidArgumentError(
                "Model must be built first. Give it an input shape, call model.build(input_shape), or call "
                "it with a batch."
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is None:
            raise InvalidArgumentError("There is no optimizer: compile the model before, or pass one.")
        self._generators: list[Any] = []  # of PyTorch, at the last save
        self._with_torch = backend is not None and backend.backend() == "torch"
        self._positions = Positions({name: each for name, each in kwargs.items() if is_iterator(each)})
        super().__init__(
            bcast_object=functools.partial(broadcast_object, root_rank=0, name="elastic.state"),
            get_rank=lambda: lifecycle.current().topology.rank,
            **{name: each for name, each in kwargs.items() if name not in self._positions.iterators},
        )
        for name, each in self._positions.iterators.items():
            setattr(self, name, each)
        self._copies = VariableCopies()
        self._prepare()
        self._adopt()

    def save(self) -> None:
        self._prepare()
        super().save()
        self._adopt()

    def restore(self) -> None:
        if getattr(self.model, "_jax_state", None):
            self.model._jax_state = None  # the state of an interrupted fit() would come back otherwise
        self._copies.restore()
        self._positions.restore()
        _set_generators(self._generators)
        super().restore()

    def sync(self) -> None:
        """Take over the state of rank 0. A collective.

        Raises:
            HorovodInternalError: rank 0 syncs another state; variables differ in number, shape or dtype; or
                the world failed.
        """
        parts = ["model", "optimizer", *self._positions.iterators, *self._saved_state]
        saves = self._meet(parts, self._positions.saves)
        variables, seeds = self._variables(), self._seeds()
        self._copies.prepare([*variables, *seeds])
        arrays = self._copies.prepared()
        own = [seed[:1] for seed in arrays[len(variables) :]]  # the rest counts what was drawn
        if saves == self._positions.saves:  # others take over the sums of rank 0, with its count of passes
            own += [array for each, array in zip(variables, arrays, strict=False) if kept_apart(each)]
        mine = [each.copy() for each in own]
        broadcast_arrays(arrays, root_rank=0)  # what comes is what is saved, with no copy more
        for each, value in zip(own, mine, strict=True):
            each[...] = value
        broadcasts.note(references(variables))
        self._positions.sync(self._bcast_object, self._rank(), saves)
        super().sync()
        if self._rank() != 0:
            self._copies.assign_prepared()
        self._new_generators = _generators() if self._with_torch else []
        self._adopt()  # not before all has come: what is saved is of one moment

    def __setattr__(self, name: str, value: Any) -> None:
        positions = self.__dict__.get("_positions")
        if positions is not None and name in positions.iterators:
            positions.replace(name, value)
        super().__setattr__(name, value)

    def _variables(self) -> list[Any]:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # within fit() JAX keeps the values elsewhere
        optimizer = self._whole_optimizer()
        _build(optimizer, list(self.model.trainable_variables))
        return [*self.model.weights, *all_variables(optimizer)]

    def _whole_optimizer(self) -> Any:
        """The given one, or the loss scaling that Keras has put around it, whose scale counts as well."""
        around = getattr(self.model, "optimizer", None)
        return around if getattr(around, "inner_optimizer", None) is self.optimizer else self.optimizer

    def _seeds(self) -> list[Any]:
        """The states of seed generators, which Keras 3 does not count as weights."""
        weights = {id(each) for each in self.model.weights}
        return [each for each in self.model.variables if id(each) not in weights]

    def _prepare(self) -> None:
        self._copies.prepare([*self._variables(), *self._seeds()])
        self._positions.prepare()
        self._new_generators = _generators() if self._with_torch else []

    def _adopt(self) -> None:
        self._copies.adopt()
        self._positions.adopt()
        self._generators = self._new_generators


def _generators() -> list[Any]:
    """The states of PyTorch's default generators, on the host and on each device that is in use."""
    torch: Any = sys.modules["torch"]
    on_devices = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if on_devices else [])]


def _set_generators(states: list[Any]) -> None:
    if states:
        torch: Any = sys.modules["torch"]
        torch.set_rng_state(states[0])
        if states[1:]:
            torch.cuda.set_rng_state_all(states[1:])


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Create the state of an optimizer of any generation of Keras, if it has none."""
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)
    elif not (getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)):
        optimizer.build(variables)


def runner(framework: Framework) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorator ``run`` of the modules about ``framework``."""

    def reset() -> None:
        shutdown()
        init()

    def run(func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator for ``func(state, ...)``: after a failure of a collective, also within ``fit`` and in
        whatever error the framework reports it, it is called again in a new world, with the state of the last
        commit; after ``HostsUpdatedInterrupt`` with the state as it is.

        No collective may be called between ``init()`` and the decorated function.
        """

        @functools.wraps(func)
        def translating(*args: Any, **kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except Exception as error:  # frameworks report failures by their own errors
                failure = framework.own_failure(error)
                if failure is None or failure is error:
                    raise
                raise failure from error

        return run_fn(translating, reset)

    return run


# -- callbacks ----------------------------------------------------------------------------------------------

_Callback: Any = object  # stands for the base class of Keras, which is added later


class CommitStateCallbackImpl(_Callback):  # type: ignore[misc]
    """Commits the state after every ``batches_per_commit`` batches, and after every epoch. It must be the
    last callback, as it saves what the others have set."""

    def __init__(self, backend: Any, state: Any, batches_per_commit: int, *args: Any) -> None:
        super().__init__(*args)
        self.backend = backend
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.commit()

    def commit(self) -> None:
        """Commit the state."""
        self.state.commit()


class UpdateBatchStateCallbackImpl(_Callback):  # type: ignore[misc]
    """Keeps the number of the last finished batch in ``state.batch``; 0 after an epoch.

    Keras decides itself how many batches an epoch has: after a reset, pass ``steps_per_epoch=steps -
    state.batch`` and a data set that skips ``state.batch`` batches to ``fit``, for one epoch. Such a ``fit``
    counts on from there. The last batch that was finished is repeated.
    """

    def __init__(self, backend: Any, state: Any, *args: Any) -> None:
        super().__init__(*args)
        self.backend = backend
        self.state = state
        self.steps_per_epoch: int | None = None
        self._left_out = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._left_out = 0
        if not (self.params and self.params.get("steps")):
            return
        if self.steps_per_epoch is None:
            self.steps_per_epoch = self.params["steps"]
        whole = max(self.steps_per_epoch, getattr(self.state, "_steps_per_epoch", 0))
        self.state._steps_per_epoch = whole
        if self.steps_per_epoch == whole - self.state.batch:
            self._left_out = self.state.batch
        # The progress bar shows this number.
        self.params["steps"] = self.steps_per_epoch - (self.state.batch - self._left_out)

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._left_out + batch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallbackImpl(_Callback):  # type: ignore[misc]
    """Keeps the number of finished epochs in ``state.epoch``: pass ``epochs=total - state.epoch`` to
    ``fit``."""

    def __init__(self, backend: Any, state: Any, *args: Any) -> None:
        super().__init__(*args)
        self.backend = backend
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


def elastic_classes(keras: Any, module: str) -> tuple[Any, Any, Any, Any]:
    """The state and the callbacks for ``keras``, to be found in ``module``."""
    backend = keras.backend

    class KerasState(ModelState):
        __doc__ = ModelState.__doc__

        def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
            super().__init__(model, optimizer, backend, **kwargs)

    class CommitStateCallback(CommitStateCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
        __doc__ = CommitStateCallbackImpl.__doc__

        def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
            super().__init__(backend, state, batches_per_commit)

    for each in (KerasState, CommitStateCallback):
        each.__module__, each.__qualname__ = module, each.__name__
    return (
        KerasState,
        CommitStateCallback,
        callback_class(UpdateBatchStateCallbackImpl, keras, module),
        callback_class(UpdateEpochStateCallbackImpl, keras, module),
    )
