"""What goes wrong, as TensorFlow's errors; the world goes on afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.tensorflow.ways import WAYS, float32, same
from tests.contract.world import Cases

import horovod.tensorflow as hvd

CASES = Cases()
FailedPrecondition = tf.errors.FailedPreconditionError
Invalid = tf.errors.InvalidArgumentError


def fails(function: Callable[..., Any], given: Any, errors: Any, match: str = "") -> None:
    for run in WAYS.values():
        with pytest.raises(errors, match=match or None):
            run(function, [np.asarray(given)])
        same(hvd.allreduce(tf.ones(2), op=hvd.Sum).numpy(), float32([hvd.size()] * 2))


@CASES.add
def ranks_disagree() -> None:
    r = hvd.rank()
    if hvd.size() == 1:
        return
    rows = np.ones((2, 3 + r), np.float32)
    dtype = np.ones((2, 2), np.float32 if r == 0 else np.float64)
    for collective in (
        lambda t: hvd.allreduce(t, op=hvd.Sum, name="e.allreduce"),
        lambda t: hvd.allgather(t, name="e.allgather"),
        lambda t: hvd.broadcast(t, 0, name="e.broadcast"),
        lambda t: hvd.reducescatter(t, op=hvd.Sum, name="e.reducescatter"),
        lambda t: hvd.alltoall(t, splits=[1] * 2 + [0] * (hvd.size() - 2), name="e.alltoall"),
    ):
        fails(collective, rows, FailedPrecondition, "Mismatched")
        fails(collective, dtype, FailedPrecondition, "Mismatched data types")
    fails(lambda t: hvd.broadcast(t, r % 2, name="e.root"), [1.0], FailedPrecondition, "root rank")
    fails(lambda t: hvd.reduce(t, r % 2, name="e.reduce"), [1.0], FailedPrecondition, "REDUCE root rank")
    fails(
        lambda t: hvd.allreduce(t, op=hvd.Sum if r == 0 else hvd.Max, name="e.op"), [1.0], FailedPrecondition
    )


@CASES.add
def the_message_names_the_op_and_who_said_what() -> None:
    if hvd.size() == 1:
        return
    with pytest.raises(FailedPrecondition, match=r"HorovodAllreduce.*[Rr]ank 0.*[Rr]ank 1"):
        hvd.allreduce(tf.ones(2 + hvd.rank()), name="e.said")


@CASES.add
def roots_that_do_not_exist() -> None:
    for root in (-1, hvd.size()):
        fails(lambda t, root=root: hvd.broadcast(t, root), [1.0], Invalid, "root rank")
        fails(lambda t, root=root: hvd.reduce(t, root), [1.0], Invalid, "root rank")


@CASES.add
def splits_that_do_not_fit() -> None:
    n = hvd.size()
    rows = np.ones((2 * n + 1, 2), np.float32)
    if n > 1:
        fails(hvd.alltoall, rows, Invalid, "multiple")
    for splits in ([4] * n, [1] * (n + 1), [-1] * n, [[1] * n]):
        fails(lambda t, splits=splits: hvd.alltoall(t, splits=splits), rows, Invalid)


@CASES.add
def scalars_have_no_rows() -> None:
    wrong = (FailedPrecondition, Invalid, ValueError)
    for collective in (
        hvd.allgather,
        hvd.reducescatter,
        lambda t: hvd.grouped_reducescatter([tf.ones(2), t]),
    ):
        fails(collective, float32(1.0), wrong)


@CASES.add
def reduce_knows_no_adasum() -> None:
    fails(lambda t: hvd.reduce(t, 0, op=hvd.Adasum), np.ones(2, np.float32), tf.errors.AbortedError, "Adasum")


@CASES.add
def reducescatter_knows_sums_only() -> None:
    fails(lambda t: hvd.reducescatter(t, op=hvd.Max), np.ones(hvd.size(), np.float32), tf.errors.AbortedError)


@CASES.add
def types_that_nobody_reduces() -> None:
    for collective in (hvd.allreduce, hvd.reducescatter):
        with pytest.raises((TypeError, Invalid, tf.errors.NotFoundError)):
            collective(tf.constant([1 + 2j]))
        with pytest.raises((TypeError, Invalid, tf.errors.NotFoundError)):
            collective(tf.constant(["text"]))


@CASES.add
def a_name_twice_at_once() -> None:
    """Whichever of two threads comes second is refused; the other goes on."""
    if hvd.size() == 1:
        return
    submit = functools.partial(hvd.allreduce, tf.ones(1), op=hvd.Sum, name="e.twice")
    with ThreadPoolExecutor(2) as threads:
        if hvd.rank() == 0:
            both = [threads.submit(submit) for _ in range(2)]
            refused = next(as_completed(both, timeout=20))
            with pytest.raises(Invalid, match="same name as another tensor"):
                refused.result()
            both.remove(refused)
        hvd.allgather_object(None)
        if hvd.rank() != 0:
            both = [threads.submit(submit)]
        same(both[0].result(timeout=20).numpy(), float32([hvd.size()]))


@CASES.add
def reductions_and_roots_that_do_not_exist() -> None:
    reducing: list[Callable[[Any], Any]] = [
        lambda op: hvd.allreduce(tf.ones(2), op=op),
        lambda op: hvd.grouped_allreduce([tf.ones(2)], op=op),
        lambda op: hvd.reducescatter(tf.ones(2), op=op),
        lambda op: hvd.reduce(tf.ones(2), 0, op=op),
        lambda op: hvd.DistributedGradientTape(tf.GradientTape(), op=op),
    ]
    rooted: list[Callable[[int], Any]] = [
        lambda root: hvd.broadcast(tf.ones(2), root),
        lambda root: hvd.reduce(tf.ones(2), root),
        lambda root: hvd.grouped_reduce([tf.ones(2)], root),
        lambda root: hvd.broadcast_variables([tf.Variable(1.0)], root),
        lambda root: hvd.broadcast_object(1, root),
    ]
    for function in reducing:
        for op in ("sum", 17):
            with pytest.raises(ValueError, match=r"is no reduction\. There are hvd\.Average, "):
                function(op)
    for function in rooted:
        for root in (2**40, -(2**31) - 1):
            with pytest.raises(ValueError, match=rf"root_rank={root} is out of range"):
                function(root)
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum).numpy(), float32([hvd.size()] * 2))


@CASES.add
def arrays_are_converted() -> None:
    ones = np.ones((hvd.size(), 2), np.float32)
    for result in (
        hvd.allreduce(ones),
        hvd.grouped_allreduce([ones])[0],
        hvd.broadcast(ones, 0),
        hvd.reduce(ones, 0),
        hvd.alltoall(ones),
        hvd.allgather(ones)[: hvd.size()],
        hvd.grouped_allgather([ones])[0][: hvd.size()],
    ):
        same(result.numpy(), ones)
    same(hvd.reducescatter(ones).numpy(), ones[:1])


@CASES.add
def before_init_and_after_shutdown() -> None:
    hvd.shutdown()
    try:
        questions: list[Callable[[], Any]] = [
            lambda: hvd.allgather(tf.ones(2)),
            lambda: hvd.broadcast(tf.ones(2), 0),
            lambda: hvd.alltoall(tf.ones(2)),
            hvd.size_op,
            hvd.rank_op,
        ]
        for function in questions:
            with pytest.raises(FailedPrecondition, match=r"hvd\.init"):
                function()
        for function in (lambda: hvd.allreduce(tf.ones(2)), lambda: hvd.grouped_allreduce([tf.ones(2)])):
            with pytest.raises(ValueError, match=r"hvd\.init"):
                function()
    finally:
        hvd.init()
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum).numpy(), float32([hvd.size()] * 2))


@CASES.add
def a_shutdown_ends_what_is_pending_with_an_unknown_error() -> None:
    """Elastic training knows a lost world by it."""
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        hvd.shutdown()
    else:
        with pytest.raises((tf.errors.UnknownError, FailedPrecondition), match="HorovodAllreduce"):
            hvd.allreduce(tf.ones(2))
        hvd.shutdown()
    hvd.init()
