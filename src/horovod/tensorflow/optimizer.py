"""``DistributedOptimizer`` for optimizers of ``tf.compat.v1.train``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.collectives.ops import Adasum, Average
from horovod.errors import InvalidArgumentError
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.groups import Groups
from horovod.gradients.settings import GradientSettings
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer
from horovod.tensorflow.gradient_aggregation import GraphAggregation
from horovod.tensorflow.gradient_reduction import reduction

__all__ = ["DistributedOptimizer"]


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer whose ``compute_gradients``, and so ``minimize``, give reduced gradients.

    Everything else is done by the wrapped optimizer: slots and their names are its own, so a checkpoint of
    one can be restored by the other.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoneCompressor,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        name = name or f"Distributed{type(optimizer).__name__}"
        settings = GradientSettings.of(locals())
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduce = reduction(settings)
        self._agg_helper: GraphAggregation | None = None
        if backward_passes_per_step > 1:
            if tf.executing_eagerly():
                raise InvalidArgumentError(
                    f"backward_passes_per_step={backward_passes_per_step} is not supported for "
                    f"{type(optimizer).__name__} in eager mode. Use an optimizer of Keras, or sum the "
                    "gradients of several passes before apply_gradients()."
                )
            self._agg_helper = GraphAggregation(settings, self._reduce)

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var``, which belongs to this rank alone."""
        self._reduce.register(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Call the wrapped optimizer's method of this name, and reduce the gradients that it returns."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._agg_helper is not None:
            reduced = self._agg_helper.compute_gradients(gradients, variables)
        else:
            reduced = self._reduce(gradients, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Update the variables by the wrapped optimizer, with ``backward_passes_per_step`` only when all
        passes have been summed. ``global_step`` counts every pass."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self._optimizer, pairs, global_step=global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap ``optimizer`` so that it works with the gradients of all ranks.

    Args:
        optimizer: one of ``tf.compat.v1.train``, whose gradients are reduced in ``compute_gradients()``; or
            one of Keras, for which this is ``horovod.tensorflow.keras.DistributedOptimizer``.
        name: in the names of the operations; by default ``Distributed`` and the name of the class.
        use_locking: for the base class of the wrapper.
        device_dense, device_sparse: where dense gradients and ``IndexedSlices`` are reduced.
        compression: around the reduction of each dense gradient: one of ``Compression``, or a class of your
            own.
        sparse_as_dense: reduce ``IndexedSlices`` as dense tensors.
        backward_passes_per_step: gradients of so many passes are summed locally and then reduced and applied
            once. With v1 optimizers in graph mode only.
        op: the reduction. With ``Adasum`` the steps that a v1 optimizer takes on each rank are combined
            instead of the gradients; then only ``name``, ``use_locking``, the devices, ``compression`` and
            ``backward_passes_per_step`` have an effect.
        gradient_predivide_factor: with ``Average``, divide by this before the sum and by the rest after it.
        average_aggregated_gradients: divide by ``backward_passes_per_step`` too.
        num_groups: deprecated, use ``groups``.
        groups: a number of groups to cut the gradients into, or lists of variables; the gradients of a group
            are reduced as one operation. By default there is one operation for each dtype.
        process_set: ranks whose gradients are combined; others use their own gradients.
        scale_local_gradients: divide gradients of variables that are registered as local
            (``register_local_var``) by the number of ranks, the scale of an average.

    Raises:
        ValueError: an argument is wrong, see each message.
        NotImplementedError: ``Adasum`` on a process set.
    """
    settings = GradientSettings.of(locals())
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op != Adasum:
            return _DistributedOptimizer(optimizer, use_locking=use_locking, **vars(settings))
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support non-global process sets.")
        return _DistributedAdasumOptimizer(
            optimizer, name, use_locking, device_dense, device_sparse, compression, backward_passes_per_step
        )
    if op == Adasum:
        raise InvalidArgumentError("op=Adasum is not supported with optimizers of Keras.")
    from horovod.tensorflow import keras  # which imports Keras

    return keras.DistributedOptimizer(optimizer, **vars(settings))
