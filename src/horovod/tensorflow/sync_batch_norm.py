"""``SyncBatchNormalization``: batch normalisation over the batches of all ranks together.

Importing this module imports Keras, in whichever generation ``tf.keras`` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod._keras.moments import refuse_fused
from horovod.runtime import lifecycle
from horovod.tensorflow.keras_adapter import moments_of_all_ranks

__all__ = ["SyncBatchNormalization"]

_KERAS_2 = getattr(tf.keras, "__version__", "2").startswith("2")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation whose mean and variance are those of the batches of all ranks, in training.

    Weights and arguments are those of ``tf.keras.layers.BatchNormalization``. The number of samples may
    differ between ranks; with a mask, only what it lets through counts. All ranks must run the same layers.
    In inference, or alone in the world, nothing is exchanged. In v1 graphs the operations that update the
    moving statistics are in the collection ``UPDATE_OPS``.

    Args:
        fused: must be ``False``: the fused kernel cannot exchange statistics.
        kwargs: for the base class.

    Raises:
        ValueError: ``fused`` is anything else.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        refuse_fused(fused)
        if _KERAS_2:
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """As in the base class."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph is None or graph.building_function:
            return super().call(inputs, training=training, mask=mask)
        before = len(graph.get_operations())
        outputs = super().call(inputs, training=training, mask=mask)
        for operation in graph.get_operations()[before:]:
            if operation.type.startswith("Assign"):
                graph.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, operation)
        return outputs

    if _KERAS_2:

        def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None) -> Any:
            if lifecycle.current().alone:
                return super()._moments(inputs, reduction_axes, keep_dims, mask=mask)
            return _moments_of_all_ranks(inputs, reduction_axes, keep_dims, mask)

    else:

        def _moments(self, inputs: Any, mask: Any) -> Any:  # type: ignore[misc]
            if lifecycle.current().alone:
                return super()._moments(inputs, mask)
            return _moments_of_all_ranks(inputs, self._reduction_axes, False, mask)


def _moments_of_all_ranks(inputs: Any, axes: Sequence[int], keep_dims: bool, mask: Any) -> tuple[Any, Any]:
    """Mean and biased variance of all ranks' ``inputs`` over ``axes``, in their dtype; differentiable.

    Squared deviations are from the rank's own mean, so that nothing cancels in the dtype of the inputs.

    Args:
        mask: bool, the shape of ``inputs`` without the last dimension; ``None``: everything counts.
    """
    x = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else inputs
    counts = tf.ones_like(x)
    if mask is not None:
        counted = tf.broadcast_to(tf.expand_dims(tf.cast(mask, tf.bool), -1), tf.shape(x))
        counts = tf.cast(counted, x.dtype)
        x = tf.where(counted, x, tf.zeros_like(x))
    count = tf.reduce_sum(counts, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(x, axes, keepdims=True), count)
    squares = tf.reduce_sum(counts * tf.square(x - mean), axes, keepdims=True)

    count, mean, squares = (tf.cast(each, tf.float64) for each in (count, mean, squares))
    mean, variance = tf.unstack(moments_of_all_ranks(count, mean, squares), num=2)
    if not keep_dims:
        mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
