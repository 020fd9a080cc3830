"""Local sums of gradients over several backward passes: what all modes share, and the sums of v1 graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import tensorflow as tf

from horovod.errors import InvalidArgumentError
from horovod.gradients.accumulation import Accumulator
from horovod.gradients.reduction import PartialReduction
from horovod.gradients.settings import GradientSettings
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.gradient_reduction import densified, partial

__all__ = ["Aggregation", "GraphAggregation", "LocalGradientAggregationHelper"]


class Aggregation(Accumulator):
    """Sums in variables of TensorFlow, in any mode."""

    _counts_iterations = True
    """True if steps are counted in ``iterations`` of the optimizer, where no ``global_step`` is given."""

    def __init__(self, settings: GradientSettings, reduction: PartialReduction) -> None:
        super().__init__(settings, reduction)
        self._reduction = reduction

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var``."""
        self._reduction.register(var)

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run ``apply_grads_closure`` in the last pass of a cycle; in the others only count the step.

        Args:
            apply_grads_closure: updates the variables, or makes the operation that does.
            optimizer: the one whose ``iterations`` count, if it is one of Keras.
            args: the first are the pairs of gradient and variable.
            kwargs: ``global_step``, if given, counts.

        Returns:
            The number of steps, if they are counted; in a v1 graph the operation to run.
        """
        step = kwargs.get("global_step")
        if step is None and self._counts_iterations:
            step = optimizer.iterations
        if self.counter is None:  # no variable had a gradient
            return apply_grads_closure()

        def steps_after(made: Any) -> list[Any]:
            with self.after(tf.nest.flatten(made)):
                return [tf.constant(0) if step is None else tf.identity(step.read_value())]

        def count() -> list[Any]:
            return steps_after(
                None if step is None else step.assign_add(tf.cast(1, step.dtype), read_value=False)
            )

        complete = self.complete([gradient for gradient, _ in args[0]])
        (steps,) = self.choose(complete, lambda: steps_after(apply_grads_closure()), count)
        return steps

    # -- the framework's part -------------------------------------------------------------------------------

    def dense(self, gradient: Any) -> Any | None:
        return densified(gradient) if isinstance(gradient, tf.IndexedSlices) else None

    def fitted(self, gradient: Any | None, total: Any) -> Any:
        return tf.zeros_like(total) if gradient is None else gradient

    def read(self, variable: Any) -> Any:
        return variable.read_value()

    def write(self, variable: Any, value: Any) -> Any:
        return variable.assign(value, read_value=False)

    def after(self, done: Sequence[Any]) -> AbstractContextManager[Any]:
        # Eager mode and functions keep the order of the program.
        ordered = tf.compat.v1.executing_eagerly_outside_functions()
        inputs = [] if ordered else [each for each in done if each is not None]
        block: AbstractContextManager[Any] = tf.control_dependencies(inputs)
        return block

    def runs_at_once(self) -> bool:
        return bool(tf.executing_eagerly())

    def choose(self, condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        def identical(results: list[Any]) -> list[Any]:
            return [None if each is None else tf.identity(each) for each in results]

        return tf.cond(condition, lambda: identical(if_true()), lambda: identical(if_false()))


class GraphAggregation(Aggregation):
    """Sums for v1 graphs.

    The sums and the counter of passes are variables of the collection ``LOCAL_VARIABLES``, so that they are
    neither broadcast nor saved; ``MonitoredTrainingSession`` initialises them, other scripts run
    ``tf.compat.v1.local_variables_initializer()``.

    Args:
        rank: of this process; part of the names of the variables, as is ``name``.
        of_keras: initialise the variables at once, in the session of Keras.
    """

    returns_sums = False
    traces_share_sums = False

    def __init__(
        self,
        settings: GradientSettings,
        reduction: PartialReduction,
        rank: int | None = None,
        of_keras: bool = False,
    ) -> None:
        super().__init__(settings, reduction)
        rank = lifecycle.current().topology.rank if rank is None else rank
        self._scope = f"aggregation_variables_{settings.name}{rank}"
        self._counts_iterations = of_keras

    def sums_of(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if all(gradient is None for gradient in gradients):
            return list(gradients)
        made: list[Any] = []

        def make(name: str, shape: Any, dtype: Any) -> Any:
            variable = tf.compat.v1.get_variable(
                name,
                shape=shape,
                dtype=dtype,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES, "aggregating_collection"],
                use_resource=True,  # so that reads follow the order of the control dependencies
            )
            made.append(variable)
            return variable

        with tf.compat.v1.variable_scope(None, default_name=self._scope):
            self.counter = make("aggregation_counter", (), tf.int32)
            sums = [
                None
                if gradient is None
                else make(f"gradient_sum_{number}", static_shape(gradient, variable), gradient.dtype)
                for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
            ]
        if self._counts_iterations:
            tf.compat.v1.keras.backend.get_session().run(tf.compat.v1.variables_initializer(made))
        return sums

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return tf.group(super().apply_gradients(apply_grads_closure, optimizer, *args, **kwargs))


class LocalGradientAggregationHelper(GraphAggregation):
    """:class:`GraphAggregation` for others, around a reduction of their own.

    Args:
        backward_passes_per_step: how many passes make one step.
        allreduce_func: takes gradients and their variables as two lists, returns the reduced gradients.
        sparse_as_dense: sum ``IndexedSlices`` as dense tensors; without it they are an error.
        average_aggregated_gradients: divide by the number of passes.
        rank: of this process; part of the names of the variables.
        optimizer_type: ``_OPTIMIZER_TYPE_KERAS`` or ``_OPTIMIZER_TYPE_LEGACY``; the variables of the former
            are initialised at once, in the session of Keras.
        process_set: ranks whose gradients are combined.
        scale_local_gradients: divide gradients of local variables by the number of ranks.
        name: of the optimizer; part of the names of the variables.

    Raises:
        ValueError: no positive number of passes.
    """

    _OPTIMIZER_TYPE_KERAS: ClassVar[str] = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY: ClassVar[str] = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        settings = GradientSettings.of(locals())
        of_keras = optimizer_type == self._OPTIMIZER_TYPE_KERAS
        super().__init__(settings, partial(allreduce_func, settings), rank, of_keras)


def static_shape(gradient: Any, variable: Any) -> Any:
    """The shape of a gradient; if the graph does not tell, that of its variable.

    Raises:
        ValueError: neither is known.
    """
    for shape in (gradient.shape, tf.TensorShape(variable.shape)):
        if shape.is_fully_defined():
            return shape
    raise InvalidArgumentError(
        f"The shape of the gradient of {variable.name} is not known while the graph is built, as "
        "backward_passes_per_step > 1 needs it: give the variable a static shape."
    )
