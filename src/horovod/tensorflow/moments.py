"""Mean and variance of the values of all ranks, by operations of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.collectives.ops import Sum
from horovod.tensorflow.mpi_ops import _allreduce

__all__ = ["moments_of_all_ranks"]


def moments_of_all_ranks(count: Any, mean: Any, squares: Any) -> Any:
    """Mean and biased variance, stacked, of all ranks' values; differentiable.

    Each rank sends three numbers: how many values it has, their sum and the sum of their squares, in float64.

    Args:
        count, mean, squares: float64, of one shape: how many values this rank has, their mean, and the sum of
            their squared deviations from it.
    """
    own = tf.stack([count, count * mean, squares + count * tf.square(mean)])
    count, sums, squares = tf.unstack(_allreduce(own, name="sync_batch_norm", op=Sum), num=3)
    mean = tf.math.divide_no_nan(sums, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return tf.stack([mean, variance])
