"""``DistributedOptimizer`` for Keras 2: a subclass of the class of the given optimizer that reduces gradients
where they are computed. ``apply_gradients`` alone does not reduce: a loop that calls it uses
``DistributedGradientTape``.

There are two families of optimizers: those of Keras 2.11 to 2.15, and the older ones, which became
``tf.keras.optimizers.legacy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from horovod._keras.classes import has_lost, shown_as_distributed
from horovod.errors import InvalidArgumentError
from horovod.gradients.reduction import PartialReduction
from horovod.gradients.settings import GradientSettings
from horovod.tensorflow.gradient_aggregation import Aggregation, GraphAggregation
from horovod.tensorflow.gradient_aggregation_eager import EagerAggregation
from horovod.tensorflow.gradient_reduction import is_marked, reduction
from horovod.tensorflow.replicas import compare_unexchanged

__all__ = ["distributed"]

_UNEXCHANGED: Final = (
    "apply_gradients() was called with gradients of one rank: with Keras 2 a distributed optimizer exchanges "
    "them in minimize() and fit() alone. Write tape = hvd.DistributedGradientTape(tape) before "
    "tape.gradient()."
)

_Wrapped: Any = object  # stands for the class of the given optimizer, which is added later


def distributed(optimizer: Any, settings: GradientSettings) -> Any:
    """A distributed optimizer like ``optimizer``, with its state.

    It is made from the configuration. One that has state, or whose configuration does not tell all, shares
    what it holds with the given one.
    """
    kind = type(optimizer)
    mixin = _Newer if hasattr(kind, "compute_gradients") else _Older
    contents = {"__module__": kind.__module__, "__doc__": kind.__doc__, "_horovod_settings": settings}
    made: Any = type(kind.__name__, (mixin, kind), contents)
    # Slots cannot be made again: the optimizer does not keep their variables.
    if not (getattr(optimizer, "_built", False) or getattr(optimizer, "_weights", None)):
        try:
            again = made.from_config(optimizer.get_config())
        except (TypeError, ValueError, NotImplementedError):
            pass  # a class of the user, whose constructor wants other arguments
        else:
            if not has_lost(optimizer, again):
                return again
    instance = made.__new__(made)
    instance.__dict__.update(optimizer.__dict__)
    instance._begin()
    return instance


class _DistributedOptimizer(_Wrapped):  # type: ignore[misc]
    """Code shared by both families of optimizers."""

    _horovod_settings: GradientSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin()

    def __repr__(self) -> str:
        return shown_as_distributed(super().__repr__())

    def _begin(self) -> None:
        settings = self._horovod_settings
        self._reduction: PartialReduction = reduction(settings)
        self._agg_helper: Aggregation | None = None
        self._reduced = False  # whether gradients were, since the last update
        if settings.backward_passes_per_step > 1:
            if tf.compat.v1.executing_eagerly_outside_functions():
                self._agg_helper = EagerAggregation(settings, self._reduction)
            else:
                self._agg_helper = GraphAggregation(settings, self._reduction, of_keras=True)

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var`` from now on."""
        self._reduction.register(var)

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """The gradients to use: reduced, or summed over the passes so far."""
        self._reduced = True
        if self._agg_helper is not None:
            return self._agg_helper.compute_gradients(tuple(grads), tuple(vars))
        return self._reduction(list(grads), list(vars))

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        listed = list(pairs)
        gradients = self._allreduce([g for g, _ in listed], [v for _, v in listed])
        return list(zip(gradients, [v for _, v in listed], strict=True))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Update; in passes that only add up gradients, count."""
        pairs = list(grads_and_vars)
        own = super().apply_gradients
        if self._agg_helper is None:
            with tf.control_dependencies(self._compare(pairs)):
                return own(pairs, *args, **kwargs)
        with tf.init_scope():  # no variable may be made within a condition
            self._make_variables([variable for gradient, variable in pairs if gradient is not None])
        return self._agg_helper.apply_gradients(
            lambda: own(pairs, *args, **kwargs), self, pairs, *args, **kwargs
        )

    def _compare(self, pairs: list[tuple[Any, Any]]) -> list[Any]:
        """Compare the replicas if nothing is known of an exchange of these gradients."""
        reduced, self._reduced = self._reduced, False
        if reduced or any(is_marked(gradient) for gradient, _ in pairs):
            return []
        common = [variable for _, variable in pairs if variable not in self._reduction.local]
        return compare_unexchanged(self._horovod_settings, common, _UNEXCHANGED)

    def _make_variables(self, variables: list[Any]) -> None:
        raise NotImplementedError


class _Newer(_DistributedOptimizer):
    """For optimizers of Keras 2.11 to 2.15."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        return self._pairs(super().compute_gradients(loss, var_list, tape))

    # The names that these methods had before, and that scripts still call.

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        own = getattr(super(), "_compute_gradients", None)  # Keras has none, but a class of the user may
        if own is not None:
            return self._pairs(own(loss, var_list, grad_loss, tape))
        if grad_loss is not None:
            raise InvalidArgumentError("These optimizers take no grad_loss: multiply the loss by it.")
        return self.compute_gradients(loss, var_list, tape)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The reduced gradients of a v1 graph."""
        variables = tf.nest.flatten(params)
        own = getattr(super(), "get_gradients", tf.gradients)  # Keras has none, but a class of the user may
        return self._allreduce(own(loss, variables), variables)

    def _make_variables(self, variables: list[Any]) -> None:
        self.build(variables)


class _Older(_DistributedOptimizer):
    """For optimizers of earlier versions."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        return self._pairs(super()._compute_gradients(loss, var_list, grad_loss, tape))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The reduced gradients of a v1 graph."""
        variables = tf.nest.flatten(params)
        return self._allreduce(super().get_gradients(loss, params), variables)

    def _make_variables(self, variables: list[Any]) -> None:
        self._create_all_weights(variables)
