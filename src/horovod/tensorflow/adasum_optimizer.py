"""``DistributedOptimizer(op=Adasum)`` for optimizers of ``tf.compat.v1.train``: combines the steps that each
rank would take, not the gradients.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from horovod.collectives.ops import Adasum
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.settings import GradientSettings
from horovod.tensorflow.gradient_reduction import allreduce_gradients

__all__: list[str] = []

_START = "delta_start"


class _DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Lets the wrapped optimizer step on its own, and combines what the steps changed.

    A cycle are ``backward_passes_per_step`` steps of the wrapped optimizer with the gradients of this rank.
    The wrapper keeps the values from before the cycle (slot ``delta_start``); after it, the changes of all
    ranks are combined by Adasum, and the variables become what they were before plus the combination.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoneCompressor,
        backward_passes_per_step: int = 1,
    ) -> None:
        name = name or f"DistributedDelta{type(optimizer).__name__}"
        settings = GradientSettings.of(locals(), op=Adasum)
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._passes = backward_passes_per_step
        self._combine = allreduce_gradients(settings, compares=False)  # they have stepped apart
        self._changed: set[int] = set()  # in eager code: the variables that this cycle has stepped

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Gradients of this rank alone, by the wrapped optimizer."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """A step of the wrapped optimizer; at the end of a cycle, combine the changes of all ranks.

        Returns:
            In graph mode the operation to run.

        Raises:
            NotImplementedError: the number of ranks is no power of two.
        """
        pairs = list(grads_and_vars)
        given = [variable for gradient, variable in pairs if gradient is not None]
        # In eager code another rank may have a gradient where this one has none.
        variables = [variable for _, variable in pairs] if tf.executing_eagerly() else given
        if not variables:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.init_scope():
            starts = [self._zeros_slot(variable, _START, self._name) for variable in variables]
            first = min(variables, key=lambda variable: str(variable.name))
            # Counts the steps. Checkpoints contain it, as it tells the place in a cycle.
            steps = self._create_non_slot_variable(np.int64(0), "step_count", first)

        before = _read(steps)
        with tf.control_dependencies([before]):
            remembered = tf.cond(
                tf.equal(before % self._passes, 0),
                lambda: self._begin(variables, starts),
                lambda: tf.constant(False),
            )
        # Gradients wait as well: a variable of v1 changes in place, while others may still read it.
        with tf.control_dependencies([remembered]):
            stepped = None
            if given:
                stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        self._changed.update(id(variable) for variable in given)
        with tf.control_dependencies(_operations([stepped])):
            after = tf.convert_to_tensor(steps.assign_add(np.int64(1)))
        with tf.control_dependencies([after]):
            combined = tf.cond(
                tf.equal(after % self._passes, 0),
                lambda: self._exchange(
                    pairs, {id(v): start for v, start in zip(variables, starts, strict=True)}
                ),
                lambda: tf.constant(False),
            )
        return None if tf.executing_eagerly() else tf.group(combined, name=name)

    def _begin(self, variables: list[Any], starts: list[Any]) -> Any:
        """Begin a cycle."""
        self._changed.clear()
        return _after([start.assign(_read(var)) for start, var in zip(starts, variables, strict=True)])

    def _exchange(self, pairs: list[tuple[Any, Any]], starts: dict[int, Any]) -> Any:
        """Combine the changes of a cycle; ``starts``: by number of the variable, its value before."""
        eager = tf.executing_eagerly()
        variables = [variable for _, variable in pairs]
        changes = [
            _read(variable) - _read(starts[id(variable)])
            if (id(variable) in self._changed if eager else gradient is not None)
            else None
            for gradient, variable in pairs
        ]
        updates = []
        for variable, change in zip(variables, self._combine(changes, variables), strict=True):
            if change is not None:
                start = starts[id(variable)]
                result = _read(start) + change
                updates += [start.assign(result), variable.assign(result)]
        return _after(updates)

    def get_slot(self, var: Any, name: str) -> Any:
        """A slot of the wrapper, or else of the wrapped optimizer."""
        own = super().get_slot(var, name)
        return self._optimizer.get_slot(var, name) if own is None else own

    def get_slot_names(self) -> list[str]:
        """Names of the slots of both."""
        return [*super().get_slot_names(), *self._optimizer.get_slot_names()]

    def variables(self) -> list[Any]:
        """Variables of both."""
        return [*super().variables(), *self._optimizer.variables()]


def _read(variable: Any) -> Any:
    """The value at this place in the order of control dependencies, for both kinds of variables."""
    return tf.identity(variable.read_value())


def _after(operations: list[Any]) -> Any:
    """A bool that is there when ``operations`` are done."""
    with tf.control_dependencies(_operations(operations)):
        return tf.constant(True)


def _operations(made: list[Any]) -> list[Any]:
    """The operations among ``made`` to wait for; none in eager mode, where they have run already."""
    return [] if tf.executing_eagerly() else [each for each in made if each is not None]
