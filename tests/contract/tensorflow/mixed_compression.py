"""A compressor that sends large tensors in half precision and small ones as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract.tensorflow.modes import Session, graph
from tests.contract.world import Cases

import horovod.tensorflow as hvd

CASES = Cases()
SIZES = (2, 8, 3, 16)  # small and large by turns


class LargeAsHalf(hvd.compression.Compressor):
    limit = 4

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.shape[0] > cls.limit else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


def tensors() -> list[Any]:
    # 2 ** -12 is what float16 loses beside 1, and float32 keeps.
    return [tf.fill([size], np.float32(hvd.rank() + 1 + 2**-12)) for size in SIZES]


def check(results: Any) -> None:
    mean = (hvd.size() + 1) / 2
    assert [each.dtype for each in results] == [np.float32] * len(SIZES)
    for size, result in zip(SIZES, results, strict=True):
        lost = 0 if size > 4 else 2**-12
        np.testing.assert_array_equal(result, np.full(size, mean + lost, np.float32))


@CASES.add
def grouped_allreduce_of_two_compressed_types() -> None:
    def call() -> Any:
        return hvd.grouped_allreduce(tensors(), compression=LargeAsHalf)

    check([result.numpy() for result in call()])
    check([result.numpy() for result in tf.function(call)()])
    with graph("graph"):
        check(Session().run(call()))


@CASES.add
def grouped_allreduce_of_two_types() -> None:
    given = [tf.constant([1.0, 2.0], tf.float64), tf.constant([3]), tf.constant([4.0], tf.float64)]
    for call in (hvd.grouped_allreduce, tf.function(hvd.grouped_allreduce)):
        results = call(given, op=hvd.Sum)
        assert [result.dtype for result in results] == [tf.float64, tf.int32, tf.float64]
        for result, tensor in zip(results, given, strict=True):
            np.testing.assert_array_equal(result, hvd.size() * tensor.numpy())


@CASES.add
def grouped_reducescatter_of_two_compressed_types() -> None:
    class MuchAsHalf(LargeAsHalf):
        limit = 4 * hvd.size()

    rows = [tf.repeat(tensor, hvd.size()) for tensor in tensors()]
    check([result.numpy() for result in hvd.grouped_reducescatter(rows, compression=MuchAsHalf)])


@CASES.add
def tape_and_optimizer_with_two_compressed_types() -> None:
    variables = [tf.Variable(tf.zeros([size])) for size in SIZES]
    factors = tensors()

    def loss() -> Any:
        return tf.add_n([tf.reduce_sum(a * b) for a, b in zip(variables, factors, strict=True)])

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        return hvd.DistributedGradientTape(tape, compression=LargeAsHalf).gradient(value, variables)

    check([result.numpy() for result in gradients()])
    check([result.numpy() for result in tf.function(gradients)()])

    with graph("graph"):
        variables = [tf.compat.v1.get_variable(f"v{size}", initializer=tf.zeros([size])) for size in SIZES]
        factors = tensors()
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=LargeAsHalf, groups=2)
        step = optimizer.minimize(loss(), var_list=variables)
        session = Session()
        session.run(step)
        check([-value for value in session.run(variables)])
