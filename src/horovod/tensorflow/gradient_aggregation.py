"""Local sums of gradients over several backward passes, in v1 graphs and sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from horovod.collectives.forms import Average
from horovod.errors import InvalidArgumentError
from horovod.gradients.groups import check_passes
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.gradient_reduction import densified, partial_reduction

__all__ = ["LocalGradientAggregationHelper"]


class LocalGradientAggregationHelper:
    """Sums the gradients of ``backward_passes_per_step`` passes in local variables and reduces the sums once.

    The sums and the counter of passes are variables of the collection ``LOCAL_VARIABLES``, so that they are
    neither broadcast nor saved; ``MonitoredTrainingSession`` initialises them, other scripts run
    ``tf.compat.v1.local_variables_initializer()``. A pass reads the counter before it computes anything and
    changes it before the gradients it returns are ready, so whatever uses these sees the new value: 0 in the
    last pass of a cycle, when the gradients to apply are there.

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
        check_passes(backward_passes_per_step, Average, average_aggregated_gradients)
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.rank = rank
        self.optimizer_type = optimizer_type
        self.name = name
        self.counter: Any = None
        self._reduce = partial_reduction(allreduce_func, process_set, scale_local_gradients)

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var``."""
        self._reduce.register(var)

    # -- sums -----------------------------------------------------------------------------------------------

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add ``grads``, one for each of ``vars`` or ``None``, to the sums.

        Returns:
            In the last pass of a cycle the reduced sums, otherwise ``grads`` as they are; ``None`` stays
            ``None``.

        Raises:
            ValueError: ``IndexedSlices`` without ``sparse_as_dense``; or a shape that is not known.
        """
        given = [dense_gradient(gradient, self.sparse_as_dense) for gradient in grads]
        present = [position for position, gradient in enumerate(given) if gradient is not None]
        if not present:
            return given
        gradients = [given[position] for position in present]
        variables = [vars[position] for position in present]
        scope = f"aggregation_variables_{self.name}{self.rank}"
        with tf.compat.v1.variable_scope(None, default_name=scope):
            sums = self._make_variables(gradients, variables)

        passes = self.backward_passes_per_step
        before = self.counter.read_value()

        def begin() -> list[Any]:
            # An assignment, which forgets whatever was there, infinities too.
            return [kept.assign(gradient) for kept, gradient in zip(sums, gradients, strict=True)]

        def add() -> list[Any]:
            return [kept.assign_add(gradient) for kept, gradient in zip(sums, gradients, strict=True)]

        added = tf.cond(tf.equal(before, 0), lambda: _values(begin()), lambda: _values(add()))
        with tf.control_dependencies([before, *added]):
            after = self.counter.assign(tf.math.floormod(before + 1, passes), read_value=True)
            after = tf.convert_to_tensor(after)

        def finish() -> list[Any]:
            reduced = self._reduce(added, variables)
            if self.average_aggregated_gradients:
                reduced = [gradient / passes for gradient in reduced]
            return [tf.identity(gradient) for gradient in reduced]

        outcome = tf.cond(tf.equal(after, 0), finish, lambda: [tf.identity(g) for g in gradients])
        for position, gradient in zip(present, outcome, strict=True):
            given[position] = gradient
        return given

    def _make_variables(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The counter and the sums."""
        collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES, "aggregating_collection"]

        def make(name: str, shape: Any, dtype: Any) -> Any:
            return tf.compat.v1.get_variable(
                name,
                shape=shape,
                dtype=dtype,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                collections=collections,
                use_resource=True,  # reads then come in the order of the control dependencies
            )

        self.counter = make("aggregation_counter", (), tf.int32)
        sums = [
            make(f"gradient_sum_{number}", static_shape(gradient, variable), gradient.dtype)
            for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        ]
        if self.optimizer_type == self._OPTIMIZER_TYPE_KERAS:
            session = tf.compat.v1.keras.backend.get_session()
            session.run(tf.compat.v1.variables_initializer([self.counter, *sums]))
        return sums

    # -- updates --------------------------------------------------------------------------------------------

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run ``apply_grads_closure`` in the last pass of a cycle; in the others only count the step.

        Args:
            apply_grads_closure: makes the operation that updates the variables.
            optimizer: the one whose ``iterations`` count, if it is one of Keras.
            args: the first are the pairs of gradient and variable.
            kwargs: ``global_step``, if given, counts.

        Returns:
            The operation to run.
        """
        step = kwargs.get("global_step")
        if step is None and self.optimizer_type == self._OPTIMIZER_TYPE_KERAS:
            step = optimizer.iterations
        gradients = [gradient for gradient, _ in args[0] if gradient is not None]
        if self.counter is None:  # no variable had a gradient
            return apply_grads_closure()
        with tf.control_dependencies(gradients):
            complete = tf.equal(self.counter.read_value(), 0)

        def update() -> Any:
            with tf.control_dependencies(_operations(apply_grads_closure())):
                return tf.constant(True)

        def count() -> Any:
            counted = [] if step is None else [step.assign_add(tf.cast(1, step.dtype))]
            with tf.control_dependencies(_operations(counted)):
                return tf.constant(False)

        return tf.group(tf.cond(complete, update, count))


def dense_gradient(gradient: Any, sparse_as_dense: bool) -> Any:
    """``gradient`` as a dense tensor, or ``None``.

    Raises:
        ValueError: ``IndexedSlices`` that are not to be made dense.
    """
    if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
        raise InvalidArgumentError(
            "IndexedSlices are not supported with backward_passes_per_step > 1: pass sparse_as_dense=True."
        )
    return densified(gradient)


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


def _values(assigned: Sequence[Any]) -> list[Any]:
    return [tf.convert_to_tensor(each) for each in assigned]


def _operations(made: Any) -> list[Any]:
    """What an update returned, as control dependencies."""
    return [each for each in tf.nest.flatten(made) if each is not None]
