"""Gradients of the collectives, and what the ops know about the world."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract.tensorflow.ways import WAYS, every_way, float32, int32, same
from tests.contract.world import Cases

import horovod.tensorflow as hvd

CASES = Cases()


def gradient_of(function: Callable[[Any], Any], weights: Any = 1.0) -> Callable[[Any], Any]:
    """The gradient of the sum of the results, each times its weight."""

    def run(given: Any) -> Any:
        if not tf.executing_eagerly() and not tf.inside_function():
            made = function(given)
            return tf.compat.v1.gradients(tf.reduce_sum(made * tf.cast(weights, made.dtype)), given)[0]
        with tf.GradientTape() as tape:
            tape.watch(given)
            made = function(given)
            total = tf.reduce_sum(made * tf.cast(weights, made.dtype))
        return tape.gradient(total, given)

    return run


def check(function: Callable[[Any], Any], expected: Callable[[Any], Any], rows: int = 4) -> None:
    for dtype in (np.float32, np.float64):
        given = np.ones((rows, 3), dtype)
        for way, got in every_way(gradient_of(function), given).items():
            assert way in WAYS
            same(got, np.asarray(expected(given)).astype(dtype))


@CASES.add
def of_reductions() -> None:
    n = hvd.size()
    check(lambda t: hvd.allreduce(t, op=hvd.Sum), lambda g: g * n)
    check(lambda t: hvd.allreduce(t, op=hvd.Average), lambda g: g)
    check(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5), lambda g: g * n / 2)


@CASES.add
def of_groups() -> None:
    n = hvd.size()
    check(lambda t: tf.add_n(hvd.grouped_allreduce([t, t * 2], op=hvd.Sum)), lambda g: g * 3 * n)
    check(lambda t: hvd.grouped_allgather([t, t])[1], lambda g: g)
    check(lambda t: hvd.grouped_reducescatter([t, t], op=hvd.Sum)[1], lambda g: g * n, rows=2 * n)
    with tf.GradientTape(persistent=True) as tape:
        xs = [tf.Variable(tf.ones([2], dtype)) for dtype in (tf.float64, tf.float64)]
        made = hvd.grouped_allreduce(xs, op=hvd.Sum)
    for x, y in zip(xs, made, strict=True):
        same(tape.gradient(y, x).numpy(), np.full(2, n, np.float64))


@CASES.add
def of_an_allgather_the_own_rows_of_the_average() -> None:
    r, n = hvd.rank(), hvd.size()
    check(hvd.allgather, lambda g: g)
    rows = [rank + 1 for rank in range(n)]
    upstream = np.arange(sum(rows), dtype=np.float32)
    begin = sum(rows[:r])
    for got in every_way(gradient_of(hvd.allgather, upstream), np.ones(rows[r], np.float32)).values():
        same(got, upstream[begin : begin + rows[r]])


@CASES.add
def of_a_broadcast_only_the_root_has_one() -> None:
    for root in range(hvd.size()):
        own = float(hvd.rank() == root)
        check(functools.partial(hvd.broadcast, root_rank=root), functools.partial(np.multiply, own))


@CASES.add
def of_an_alltoall() -> None:
    n = hvd.size()
    check(hvd.alltoall, lambda g: g, rows=2 * n)
    check(lambda t: hvd.alltoall(t, splits=[2] * n)[0], lambda g: g, rows=2 * n)
    # The last row is not sent.
    check(
        lambda t: hvd.alltoall(t, splits=[2] * n)[0],
        lambda g: np.concatenate([g[:-1], g[-1:] * 0]),
        rows=2 * n + 1,
    )


@CASES.add
def of_a_reducescatter() -> None:
    n = hvd.size()
    check(lambda t: hvd.reducescatter(t, op=hvd.Sum), lambda g: g * n, rows=2 * n)
    check(lambda t: hvd.reducescatter(t, op=hvd.Average), lambda g: g, rows=2 * n)


def _sum_of_a_group(root: int, t: Any) -> Any:
    return tf.add_n(hvd.grouped_reduce([t, t], root, op=hvd.Sum))


@CASES.add
def of_a_reduce_the_roots_and_elsewhere_the_own() -> None:
    n = hvd.size()
    for root in {0, n - 1}:
        own = float(hvd.rank() != root)
        for op, share in ((hvd.Sum, 1.0), (hvd.Average, 1.0 / n)):
            how = functools.partial(hvd.reduce, root_rank=root, op=op, prescale_factor=2.0)
            check(how, functools.partial(np.multiply, 2.0 * share + own))
        check(functools.partial(_sum_of_a_group, root), functools.partial(np.multiply, 2 * (1 + own)))


@CASES.add
def of_gradients() -> None:
    x = tf.Variable(3.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = hvd.allreduce(x**3, op=hvd.Average)
        first = inner.gradient(y, x)
    same(outer.gradient(first, x).numpy(), float32(18.0))


@CASES.add
def ops_tell_about_the_world() -> None:
    def ask(t: Any) -> Any:
        return [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(77),
            t,
        ]

    expected = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), 1, -3]
    for got in every_way(ask, int32(0)).values():
        assert [int(each) for each in got[:-1]] == expected
        assert all(each.dtype == np.int32 for each in got)
