"""Mean and variance of the values of all ranks, exchanged as arrays of NumPy: for frameworks that cannot
differentiate a collective by themselves.

Every rank sends three numbers for each channel: how many values it has, their mean, and the sum of their
squared deviations from the mean. They are combined in float64 as parts of one sample. No sums of squares are
used: these would cancel. The names are fixed, as all ranks run their layers in the same order.

Source: Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances",
Stanford STAN-CS-79-773 (1979), equation 2.1, here for any number of parts at once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Sum
from horovod.errors import InvalidArgumentError
from horovod.runtime.process_set import global_process_set

__all__ = ["combined", "gradient", "refuse_fused"]

Array: TypeAlias = "np.ndarray[Any, Any]"


def combined(own: Array) -> Array:
    """Combine the moments of all ranks. Blocks.

    Args:
        own: shape ``(3, channels)``: count, mean and sum of squared deviations of this rank.

    Returns:
        Float64, shape ``(3, channels)``, the same bits on all ranks: count, mean and biased variance of
        everything. Where there is no value at all, mean and variance are 0.
    """
    part = np.ascontiguousarray(own, np.float64)[np.newaxis]
    gathered = collectives.run_allgather(part, "sync_batch_norm.statistics")
    counts, means, squares = gathered.transpose(1, 0, 2)
    count = counts.sum(0)
    weights = counts / np.maximum(count, 1.0)
    mean = (weights * means).sum(0)
    variance = squares.sum(0) / np.maximum(count, 1.0) + (weights * np.square(means - mean)).sum(0)
    return np.stack([count, mean, variance])


def gradient(upstream: Array, own: Array, whole: Array) -> Array:
    """The gradient of :func:`combined`, of the sum of what all ranks make of mean and variance.

    Args:
        upstream: shape ``(2, channels)``: gradients of mean and variance on this rank.
        own: what went in.
        whole: what came out.

    Returns:
        Float64, of the shape of ``own``: its gradient; nothing depends on the count.
    """
    given = np.ascontiguousarray(upstream, np.float64)
    of_mean, of_variance = collectives.run_allreduce(
        given, np.empty_like(given), "sync_batch_norm.gradients", Sum, 1.0, 1.0, global_process_set
    )
    count, mean, _ = whole
    total = np.maximum(count, 1.0)
    # The deviations of the parts' means sum up to 0, so the derivative of the common mean drops out.
    to_mean = own[0] / total * (of_mean + 2.0 * of_variance * (own[1] - mean))
    return np.stack([np.zeros_like(total), to_mean, of_variance / total])


def refuse_fused(fused: bool | None) -> None:
    """Refuse the argument ``fused`` of a layer.

    Raises:
        ValueError: ``fused`` is not ``False``.
    """
    if fused is None or fused:
        raise InvalidArgumentError(
            f"SyncBatchNormalization does not support fused={fused}: leave it out or pass False."
        )
