"""The ways to run an op: as it is called, in a function, and in a session of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import fallback, native

DTYPES = [tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64]
MOVED = [*DTYPES, tf.uint16, tf.int16, tf.bool, tf.uint32, tf.uint64, tf.complex64, tf.complex128]


def eager(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    return tf.nest.map_structure(lambda t: t.numpy(), function(*map(tf.constant, arrays)))


def traced(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    results = tf.function(function)(*map(tf.constant, arrays))
    return tf.nest.map_structure(lambda t: t.numpy(), results)


def session(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
        outputs = function(*inputs)
        with tf.compat.v1.Session() as running:
            return running.run(outputs, dict(zip(inputs, arrays, strict=True)))


WAYS: dict[str, Callable[[Callable[..., Any], Sequence[Any]], Any]] = {
    "eager": eager,
    "function": traced,
    "session": session,
}


def every_way(function: Callable[..., Any], *arrays: Any) -> dict[str, Any]:
    """What ``function`` of tensors makes of ``arrays``, by way; NumPy arrays in the structure it returns."""
    return {way: run(function, arrays) for way, run in WAYS.items()}


def all_in_every_way(calls: Sequence[tuple[Callable[[Any], Any], Any]]) -> Iterator[list[Any]]:
    """By way, what each function makes of its array: all in one graph; with the ops of the fall-back each in
    its own, as those wait for each other in no order that the ranks have in common."""
    functions, arrays = zip(*calls, strict=True)

    def together(*tensors: Any) -> list[Any]:
        return [function(tensor) for function, tensor in zip(functions, tensors, strict=True)]

    for run in WAYS.values():
        if native.ops is fallback:
            yield [run(function, [array]) for function, array in calls]
        else:
            yield run(together, arrays)


def float32(values: Any) -> Any:
    return np.asarray(values, np.float32)


def int32(values: Any) -> Any:
    return np.asarray(values, np.int32)


def mine(rank: int, shape: Sequence[int], dtype: Any) -> Any:
    """What a rank contributes: small integers, exact in every type, no two ranks the same."""
    count = int(np.prod(shape))
    values = (np.arange(count) * 7 + rank * 3) % 11
    return values.reshape(shape).astype(dtype.as_numpy_dtype)


def of_all(shape: Sequence[int], dtype: Any) -> list[Any]:
    return [mine(rank, shape, dtype) for rank in range(hvd.size())]


def same(got: Any, expected: Any) -> None:
    """Equal in value, dtype and shape; floats within what one rounding of a half type does."""
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    tolerance = 2e-2 if expected.dtype.itemsize == 2 else 1e-6
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=1e-6)
