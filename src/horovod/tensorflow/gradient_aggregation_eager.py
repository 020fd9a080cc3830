"""Local sums of gradients over several backward passes, in eager mode and ``tf.function``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.collectives.forms import Average
from horovod.gradients.groups import check_passes, own_variable
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.gradient_aggregation import dense_gradient, static_shape
from horovod.tensorflow.gradient_reduction import partial_reduction

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager:
    """Sums the gradients of ``backward_passes_per_step`` passes and reduces the sums once.

    Attributes:
        counter: int32 variable; passes of the current cycle so far, 0 after its last one.

    Args:
        backward_passes_per_step: how many passes make one step.
        allreduce_func: takes gradients and their variables as two lists, returns the reduced gradients.
        sparse_as_dense: sum ``IndexedSlices`` as dense tensors; without it they are an error.
        average_aggregated_gradients: divide by the number of passes.
        process_set: ranks whose gradients are combined.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Raises:
        ValueError: no positive number of passes.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        check_passes(backward_passes_per_step, Average, average_aggregated_gradients)
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.counter = tf.Variable(0, dtype=tf.int32, trainable=False, name="aggregation_counter")
        self._reduce = partial_reduction(allreduce_func, process_set, scale_local_gradients)
        # By identity of the variable, which is kept so that nobody else gets its number.
        self._sums: dict[int, tuple[Any, Any]] = {}

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var``."""
        self._reduce.register(var)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add ``grads``, one for each of ``vars`` or ``None``, to the sums.

        Returns:
            In the last pass of a cycle the reduced sums, otherwise the sums so far. ``None`` for a variable
            that never had a gradient; one that has none in this pass only keeps its sum.

        Raises:
            ValueError: ``IndexedSlices`` without ``sparse_as_dense``; or a shape that is not known.
        """
        result = [dense_gradient(gradient, self.sparse_as_dense) for gradient in grads]
        for gradient, variable in zip(result, vars, strict=True):
            if gradient is not None:
                self._make_sum(gradient, variable)
        known = [at for at, variable in enumerate(vars) if id(own_variable(variable)) in self._sums]
        variables = [vars[at] for at in known]
        sums = [self._sums[id(own_variable(variable))][1] for variable in variables]
        gradients = [
            tf.zeros_like(kept) if result[at] is None else result[at]
            for at, kept in zip(known, sums, strict=True)
        ]
        passes = self.backward_passes_per_step
        begins = tf.equal(self.counter, 0)
        # Not a product with 0, which would keep infinities.
        totals = tf.cond(
            begins,
            lambda: [tf.identity(gradient) for gradient in gradients],
            lambda: [kept + gradient for kept, gradient in zip(sums, gradients, strict=True)],
        )
        for kept, total in zip(sums, totals, strict=True):
            kept.assign(total)
        self.counter.assign(tf.math.floormod(self.counter + 1, passes))

        def finish() -> list[Any]:
            reduced = self._reduce(totals, variables)
            if self.average_aggregated_gradients:
                reduced = [gradient / passes for gradient in reduced]
            return [tf.identity(gradient) for gradient in reduced]

        if known:
            outcome = tf.cond(tf.equal(self.counter, 0), finish, lambda: [tf.identity(t) for t in totals])
            for at, gradient in zip(known, outcome, strict=True):
                result[at] = gradient
        return result

    def _make_sum(self, gradient: Any, variable: Any) -> None:
        own = own_variable(variable)
        if id(own) in self._sums:
            return
        with tf.init_scope():  # in the first trace of a function too
            zeros = tf.zeros(static_shape(gradient, variable), gradient.dtype)
            self._sums[id(own)] = own, tf.Variable(zeros, trainable=False, name="gradient_sum")

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run ``apply_grads_closure`` in the last pass of a cycle; in the others only count the step in
        ``optimizer.iterations``, or in ``global_step`` if that is given.

        Returns:
            The new number of steps.
        """
        step = kwargs.get("global_step")
        if step is None:
            step = optimizer.iterations

        def update() -> Any:
            apply_grads_closure()
            return tf.convert_to_tensor(step)

        def count() -> Any:
            step.assign_add(tf.cast(1, step.dtype))
            return tf.convert_to_tensor(step)

        return tf.cond(tf.equal(self.counter, 0), update, count)
