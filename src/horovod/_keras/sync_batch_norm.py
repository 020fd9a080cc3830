"""``SyncBatchNormalization`` for Keras 3, on any framework: statistics of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras.frameworks import framework
from horovod._keras.moments import refuse_fused
from horovod.runtime import lifecycle

__all__ = ["SyncBatchNormalization"]

_framework = framework(keras.backend.backend())


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation whose mean and variance are those of the batches of all ranks, in training.

    Weights and arguments are those of ``keras.layers.BatchNormalization``. The number of samples may differ
    between ranks; with a mask, only what it lets through counts. All ranks must run the same layers in the
    same order, forward and backward. In inference, or alone in the world, nothing is exchanged.

    The gradient of the inputs is that of the whole batch; those of the weights are of this rank's part, for
    ``DistributedOptimizer`` to average.

    Args:
        fused: must be ``False``; Keras 3 has no such argument any more.
        kwargs: for the base class.

    Raises:
        ValueError: ``fused`` is anything else.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        refuse_fused(fused)
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> Any:
        if lifecycle.current().alone:
            return super()._moments(inputs, mask)
        ops, axes = keras.ops, self._reduction_axes
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        counts = ops.ones_like(x)
        if mask is not None:
            counted = ops.broadcast_to(ops.expand_dims(ops.cast(mask, "bool"), -1), ops.shape(x))
            counts, x = ops.cast(counted, x.dtype), ops.where(counted, x, ops.zeros_like(x))
        count = ops.sum(counts, axes, keepdims=True)
        mean = ops.sum(x, axes, keepdims=True) / ops.maximum(count, 1.0)
        squares = ops.sum(counts * ops.square(x - mean), axes, keepdims=True)
        own = ops.stack([ops.reshape(each, (-1,)) for each in (count, mean, squares)])
        mean, variance = ops.unstack(_framework.moments(own), 2)
        return ops.cast(mean, inputs.dtype), ops.cast(variance, inputs.dtype)
