"""Local sums of gradients over several backward passes, in eager mode and ``tf.function``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.gradients.reduction import PartialReduction
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import own_variable
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.gradient_aggregation import Aggregation, static_shape
from horovod.tensorflow.gradient_reduction import partial

__all__ = ["EagerAggregation", "LocalGradientAggregationHelperEager"]


class EagerAggregation(Aggregation):
    """Sums that are made once for each variable, and used by every trace of a function."""

    def __init__(self, settings: GradientSettings, reduction: PartialReduction) -> None:
        super().__init__(settings, reduction)
        self.counter = tf.Variable(0, dtype=tf.int32, trainable=False, name="aggregation_counter")
        # By identity of the variable. The variable is kept, so that no other gets the same number.
        self._sums: dict[int, tuple[Any, Any]] = {}

    def sums_of(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        own = [own_variable(variable) for variable in variables]
        for gradient, variable in zip(gradients, own, strict=True):
            if gradient is not None and id(variable) not in self._sums:
                with tf.init_scope():  # in the first trace of a function too
                    zeros = tf.zeros(static_shape(gradient, variable), gradient.dtype)
                    total = tf.Variable(zeros, trainable=False, name="gradient_sum")
                self._sums[id(variable)] = variable, total
        return [self._sums.get(id(variable), (variable, None))[1] for variable in own]


class LocalGradientAggregationHelperEager(EagerAggregation):
    """:class:`EagerAggregation` for others, around a reduction of their own; the arguments are those of
    :class:`~horovod.tensorflow.gradient_aggregation.LocalGradientAggregationHelper`."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        settings = GradientSettings.of(locals())
        super().__init__(settings, partial(allreduce_func, settings))
