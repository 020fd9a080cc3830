"""The callbacks. Their base class of Keras is added by :func:`callback_classes`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

from horovod._keras.classes import callback_class
from horovod._keras.frameworks import framework
from horovod._keras.learning_rate import get_learning_rate, scale_momentum, set_learning_rate
from horovod._keras.variables import agree, all_variables, averages, broadcast_variables
from horovod.errors import InvalidArgumentError, ReplicasDifferError
from horovod.gradients.replicas import broadcasts
from horovod.gradients.variables import VariableSet
from horovod.runtime import lifecycle

__all__ = [
    "BroadcastGlobalVariablesCallbackImpl",
    "LearningRateScheduleCallbackImpl",
    "LearningRateWarmupCallbackImpl",
    "MetricAverageCallbackImpl",
    "best_model_checkpoint",
    "callback_classes",
]

_log = logging.getLogger("horovod")

_ALONE_AFTER: Final = 100
"""Batches without an exchange after which a rank is taken to train alone, if no epoch ends before."""

_Callback: Any = object  # stands for the base class of Keras, which is added later


class _Impl(_Callback):  # type: ignore[misc]
    """
    Args:
        backend: ``keras.backend``.
        args: for the base class of Keras.
    """

    def __init__(self, backend: Any, *args: Any) -> None:
        super().__init__(*args)
        self.backend = backend
        self.framework = framework(backend.backend())

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        optimizer = getattr(model, "optimizer", None)
        if getattr(optimizer, "_horovod_settings", None) is None or not self.framework.keep_uncompiled(model):
            return
        warnings.warn(
            "The training step is not compiled by XLA (jit_compile), which cannot exchange gradients with "
            "other processes. Pass jit_compile=False to model.compile() to say so yourself.",
            stacklevel=2,
        )


class BroadcastGlobalVariablesCallbackImpl(_Impl):
    """Overwrites weights and optimizer state of all ranks with those of ``root_rank``, after the first batch:
    both exist by then. A callback object does it once. If the batches that follow exchange nothing with other
    ranks, rank 0 tells that.

    Attributes:
        broadcast_done: whether it has happened.

    Raises (from ``on_batch_end``, ``on_epoch_end``):
        ReplicasDifferError: nothing was exchanged, and ``HOROVOD_REPLICA_CHECK`` wants an error.
    """

    def __init__(self, backend: Any, root_rank: int, device: str = "", *args: Any) -> None:
        super().__init__(backend, *args)
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = VariableSet()
        self._carried: int | None = None  # operations up to the broadcast, while it is watched what follows
        self._batches = 0  # since then

    def register_local_var(self, var: Any) -> None:
        """Leave ``var`` alone: every rank keeps its own value."""
        self._local.add(var)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.broadcast_done:
            broadcasts.expect(self)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        broadcasts.settle(self)

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.broadcast_done:
            self._batches += 1
            if self._batches == _ALONE_AFTER:
                self._tell_if_alone()
            return
        model = self.model
        if not self.framework.in_session():
            shared = [variable for variable in model.weights if variable not in self._local]
            # Not model.variables: in Keras 3 they contain the states of random generators. With equal states
            # all ranks would drop out the same units.
            broadcast_variables([*shared, *all_variables(model.optimizer)], self.root_rank)
        else:
            self.framework.broadcast_global_variables(self.root_rank)
        self.broadcast_done = True
        broadcasts.settle(self)
        self._carried = _carried()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._batches:
            self._tell_if_alone()

    def _tell_if_alone(self) -> None:
        """Tell, once, of an optimizer that is not the wrapped one. Keras makes a plain one of that when it
        loads a model, and trains without a word.
        """
        before, self._carried = self._carried, None
        if before is None or getattr(self.model.optimizer, "_horovod_settings", None) is not None:
            return
        runtime = lifecycle.current()
        setting = runtime.config.replica_check
        if setting == "off" or runtime.topology.size == 1 or _carried() != before:
            return
        said = (
            f"Replicas are trained apart: the last {self._batches} batches have exchanged nothing between "
            "ranks: the optimizer of the model is not the one that hvd.DistributedOptimizer() has returned. "
            "Pass that one to model.compile(); a saved model comes back with it through hvd.load_model(). "
            "HOROVOD_REPLICA_CHECK=error makes this an error, off turns the check off."
        )
        if setting == "error":
            raise ReplicasDifferError(said, ranks=range(runtime.topology.size), tensors=())
        if runtime.topology.rank == 0:
            _log.warning("%s", said)


def _carried() -> int:
    """Number of operations that this rank has taken part in since ``init``."""
    return sum(operations for operations, _ in lifecycle.current().engine.paths().values())


class MetricAverageCallbackImpl(_Impl):
    """Replaces the metrics of an epoch by their averages over the ranks, before other callbacks see them.

    Raises (from ``on_epoch_end``):
        HorovodInternalError: the ranks have different metrics.
        ValueError: a metric is no number.
    """

    def __init__(self, backend: Any, device: str = "", *args: Any) -> None:
        super().__init__(backend, *args)
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None or lifecycle.current().topology.size == 1:
            return
        values = {name: _number(logs[name]) for name in sorted(logs)}
        shown = {
            name: name if value is not None else f"{name} (no number but {type(logs[name]).__name__})"
            for name, value in values.items()
        }
        agree("metrics", list(shown.values()))  # before anything raises: the other ranks would wait
        if None in values.values():
            raise InvalidArgumentError(
                "MetricAverageCallback averages numbers, and got "
                f"{', '.join(shown[name] for name, value in values.items() if value is None)}. Put the "
                "callback that adds it behind MetricAverageCallback."
            )
        if not values:
            return
        means = averages([value for value in values.values() if value is not None], "keras.metrics")
        logs.update(zip(values, means, strict=True))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


class LearningRateScheduleCallbackImpl(_Impl):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` while ``start_epoch <= epoch <
    end_epoch``.

    Raises:
        ValueError: no ``initial_lr``; in ``on_train_begin``: the number of steps of an epoch is not known.
    """

    def __init__(
        self,
        backend: Any,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        *args: Any,
    ) -> None:
        """
        Args:
            initial_lr: what is multiplied.
            multiplier: a function of the epoch, or a number m, which means ``m ** (epoch - start_epoch)``.
            start_epoch, end_epoch: the epochs in which it acts; ``end_epoch`` does not count.
            staircase: at the beginning of epochs only; otherwise at every batch, with a fraction of the
                epoch.
            momentum_correction: scale the velocity of momentum along with the learning rate.
            steps_per_epoch: for fractions; by default what Keras says.
        """
        super().__init__(backend, *args)
        if initial_lr is None:
            raise InvalidArgumentError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_from_params()

    def _steps_from_params(self) -> int:
        params = self.params or {}
        if params.get("steps"):
            return int(params["steps"])
        if params.get("samples") and params.get("batch_size"):
            return int(params["samples"]) // int(params["batch_size"])
        raise InvalidArgumentError(
            "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch "
            f"parameter to {type(self).__name__}."
        )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        epoch = self.current_epoch
        if (
            epoch is None
            or epoch < self.start_epoch
            or (self.end_epoch is not None and epoch >= self.end_epoch)
        ):
            return
        if self.staircase:
            if batch == 0:
                self._adjust(epoch)
        else:
            assert self.steps_per_epoch
            self._adjust(epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            # The callbacks of Keras 3 use the second name.
            logs["lr"] = logs["learning_rate"] = get_learning_rate(self.backend, self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = get_learning_rate(self.backend, optimizer)
        after = self.initial_lr * self.multiplier(epoch)
        set_learning_rate(self.backend, optimizer, after)
        if self.momentum_correction and before > 0 and after != before:
            scale_momentum(self.backend, optimizer, after / before)


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` within ``warmup_epochs``, in
    every batch a little."""

    def __init__(
        self,
        backend: Any,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *args: Any,
    ) -> None:
        """
        Args:
            initial_lr: the rate to reach, already scaled by the number of ranks.
            warmup_epochs: when it is reached.
            momentum_correction, steps_per_epoch: as in ``LearningRateScheduleCallback``.
            verbose: 1: say when it is done.
        """

        def multiplier(epoch: float) -> float:
            # Asked for each time, as an elastic job may change it.
            size = lifecycle.current().topology.size
            assert self.steps_per_epoch
            # So the last batch has the full rate.
            epoch += 1.0 / self.steps_per_epoch
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            backend,
            initial_lr,
            multiplier,
            0,
            warmup_epochs,
            False,
            momentum_correction,
            steps_per_epoch,
            *args,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        assert self.end_epoch is not None
        if epoch == self.end_epoch - 1 and self.verbose > 0 and lifecycle.current().topology.rank == 0:
            rate = get_learning_rate(self.backend, self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


# -- the classes that users see -----------------------------------------------------------------------------


def callback_classes(keras: Any, module: str) -> tuple[Any, Any, Any, Any]:
    """The callbacks for ``keras``, to be found in ``module``."""
    backend = keras.backend

    class BroadcastGlobalVariablesCallback(BroadcastGlobalVariablesCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
        __doc__ = BroadcastGlobalVariablesCallbackImpl.__doc__

        def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
            """
            Args:
                root_rank: whose state counts.
                device: where TensorFlow broadcasts; not used.
                local_variables: a variable or a collection of variables that every rank keeps for itself.
            """
            super().__init__(backend, root_rank, device)
            for variable in _variables(local_variables):
                self.register_local_var(variable)

    BroadcastGlobalVariablesCallback.__module__ = module
    BroadcastGlobalVariablesCallback.__qualname__ = BroadcastGlobalVariablesCallback.__name__
    return (
        BroadcastGlobalVariablesCallback,
        callback_class(MetricAverageCallbackImpl, keras, module),
        callback_class(LearningRateScheduleCallbackImpl, keras, module),
        callback_class(LearningRateWarmupCallbackImpl, keras, module),
    )


def _variables(given: Any) -> Iterable[Any]:
    """The variables in ``given``, which may be one of them.

    Raises:
        ValueError: neither a variable nor a collection of variables.
    """
    if given is None:
        return []
    listed = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
    if not all(hasattr(each, "assign") and hasattr(each, "numpy") for each in listed):
        raise InvalidArgumentError(
            f"local_variables must be a variable or a collection of variables, got {given!r}."
        )
    return listed


def best_model_checkpoint(keras: Any, module: str) -> Any:
    """``BestModelCheckpoint`` for ``keras``, to be found in ``module``."""

    class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
        """``ModelCheckpoint`` that keeps the best model, in a file that is given later: set ``filepath``
        before training."""

        __module__ = module

        def __init__(
            self,
            monitor: str = "val_loss",
            verbose: int = 0,
            save_weights_only: bool = False,
            mode: str = "auto",
            save_freq: Any = "epoch",
        ) -> None:
            # Keras decides the format by the end of the name.
            placeholder = "unset.weights.h5" if save_weights_only else "unset.keras"
            super().__init__(
                placeholder, monitor, verbose, True, save_weights_only, mode=mode, save_freq=save_freq
            )
            self.filepath: str | None = None

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            if self.filepath is None:
                raise InvalidArgumentError(
                    "Set the attribute filepath of BestModelCheckpoint before training: it is where the best "
                    "model goes."
                )
            super().on_train_begin(logs)

    BestModelCheckpoint.__qualname__ = BestModelCheckpoint.__name__
    return BestModelCheckpoint
