"""The collectives of `horovod.tensorflow` and what they make of every type, in every way to run them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.tensorflow.ways import (
    DTYPES,
    MOVED,
    all_in_every_way,
    every_way,
    float32,
    int32,
    mine,
    of_all,
    same,
    session,
    traced,
)
from tests.contract.world import Cases

import horovod.tensorflow as hvd

CASES = Cases()
SHAPES = [(), (5,), (3, 0), (4, 3), (2, 3, 4)]
REDUCTIONS: dict[str, tuple[int, Any]] = {
    "sum": (hvd.Sum, lambda all_: np.sum(all_, axis=0, dtype=all_[0].dtype)),
    "min": (hvd.Min, lambda all_: np.minimum.reduce(all_)),
    "max": (hvd.Max, lambda all_: np.maximum.reduce(all_)),
    "product": (hvd.Product, lambda all_: np.multiply.reduce(all_, dtype=all_[0].dtype)),
}


def average(values: list[Any]) -> Any:
    dtype = values[0].dtype
    total = np.sum([value.astype(np.float64) for value in values], axis=0)
    mean = total / len(values)
    return (np.trunc(mean) if dtype.kind in "iu" else mean).astype(dtype)


def reduces(op: int, expected: Any, dtype: Any) -> None:
    calls = [(functools.partial(hvd.allreduce, op=op), mine(hvd.rank(), shape, dtype)) for shape in SHAPES]
    for results in all_in_every_way(calls):
        for got, shape in zip(results, SHAPES, strict=True):
            same(got, expected(of_all(shape, dtype)))


for _name, (_op, _expected) in {**REDUCTIONS, "average": (hvd.Average, average)}.items():
    for _dtype in DTYPES:
        if _name == "product" and _dtype in (tf.float16, tf.bfloat16):
            continue  # of 4 ranks beyond what they hold exactly
        CASES.add_as(f"allreduce_{_name}_{_dtype.name}", functools.partial(reduces, _op, _expected, _dtype))


def reduces_to_a_root(op: int, expected: Any, dtype: Any) -> None:
    root = hvd.size() - 1
    given = [mine(hvd.rank(), shape, dtype) for shape in SHAPES]
    want = [expected(of_all(shape, dtype)) for shape in SHAPES] if hvd.rank() == root else given
    how = functools.partial(hvd.reduce, root_rank=root, op=op)
    for results in all_in_every_way([(how, value) for value in given]):
        for got, value in zip(results, want, strict=True):
            same(got, value)
    for group in every_way(lambda *ts: hvd.grouped_reduce(list(ts), root, op=op), *given).values():
        for got, value in zip(group, want, strict=True):
            same(got, value)


for _name, (_op, _expected) in {**REDUCTIONS, "average": (hvd.Average, average)}.items():
    for _dtype in (tf.float32, tf.int64, tf.bfloat16) if _name == "sum" else (tf.float64,):
        CASES.add_as(
            f"reduce_{_name}_{_dtype.name}", functools.partial(reduces_to_a_root, _op, _expected, _dtype)
        )


@CASES.add
def factors_are_applied_around_the_sum() -> None:
    for dtype in (tf.float32, tf.float64, tf.float16, tf.int32):
        values = of_all((7,), dtype)
        pre, post = 0.5, 4.0
        scaled = [(value.astype(np.float64) * pre).astype(value.dtype) for value in values]
        expected = (np.sum(scaled, axis=0).astype(np.float64) * post).astype(values[0].dtype)
        got = every_way(
            lambda t, pre=pre, post=post: hvd.allreduce(
                t, op=hvd.Sum, prescale_factor=pre, postscale_factor=post
            ),
            mine(hvd.rank(), (7,), dtype),
        )
        for each in got.values():
            same(each, expected)


@CASES.add
def numbers_arrays_and_variables_are_reduced() -> None:
    n = hvd.size()
    assert float(hvd.allreduce(2.5, op=hvd.Sum)) == 2.5 * n
    same(hvd.allreduce(float32([1, 2]), op=hvd.Sum).numpy(), float32([n, 2 * n]))
    same(hvd.allreduce([1.0, 2.0], op=hvd.Sum).numpy(), float32([n, 2 * n]))
    same(hvd.allreduce(tf.Variable([3.0]), op=hvd.Sum).numpy(), float32([3 * n]))


@CASES.add
def average_is_deprecated_and_excludes_op() -> None:
    with pytest.warns(DeprecationWarning, match="average"):
        same(hvd.allreduce(tf.ones(2), average=False).numpy(), float32([hvd.size()] * 2))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tf.ones(2), average=True, op=hvd.Sum)


@CASES.add
def many_operations_of_all_types_in_one_graph() -> None:
    """They fuse, and finish in any order."""
    shapes = [(3,), (4, 2), (1,)]
    given = [(shape, dtype) for dtype in DTYPES for shape in shapes] * 2
    arrays = [mine(hvd.rank(), *each) for each in given]
    for run in (traced, session):
        results = run(lambda *ts: [hvd.allreduce(t, op=hvd.Sum) for t in ts], arrays)
        for got, (shape, dtype) in zip(results, given, strict=True):
            same(got, np.sum(of_all(shape, dtype), axis=0, dtype=got.dtype))


@CASES.add
def names_may_come_in_another_order_on_every_rank() -> None:
    names = [f"order.{i}" for i in range(8)]
    shift = hvd.rank() * 3 % len(names)

    def function(*tensors: Any) -> Any:
        given = dict(zip(names, tensors, strict=True))
        made = {
            name: hvd.allreduce(given[name], op=hvd.Sum, name=name) for name in names[shift:] + names[:shift]
        }
        return [made[name] for name in names]

    arrays = [float32([i]) for i in range(8)]
    for run in (traced, session):
        for i, got in enumerate(run(function, arrays)):
            same(got, float32([i * hvd.size()]))


@CASES.add
def a_group_is_reduced_together() -> None:
    for dtype in (tf.int32, tf.float32, tf.float64):
        shapes = [(3,), (2, 2), (0,), (5, 1), ()]
        arrays = [mine(hvd.rank(), shape, dtype) for shape in shapes]
        for op, expected in ((hvd.Sum, REDUCTIONS["sum"][1]), (hvd.Average, average)):
            results = every_way(lambda *ts, op=op: hvd.grouped_allreduce(list(ts), op=op), *arrays)
            for group in results.values():
                assert isinstance(group, list)
                for got, shape in zip(group, shapes, strict=True):
                    same(got, expected(of_all(shape, dtype)))
    assert hvd.grouped_allreduce([]) == []


@CASES.add
def integer_averages_are_exact_where_sums_are_not() -> None:
    for dtype in (tf.uint8, tf.int8, tf.int32, tf.int64):
        value = tf.constant([dtype.max, dtype.min, dtype.max // 2 + 1], dtype)
        for got in (
            hvd.allreduce(value),
            hvd.grouped_allreduce([value, value])[1],
            hvd.reducescatter(tf.stack([value] * hvd.size()))[0],
        ):
            same(got.numpy(), value.numpy())
        slices = tf.IndexedSlices(tf.stack([value]), tf.constant([0]), tf.constant([1, 3]))
        got = hvd.allreduce(slices)
        assert got.values.dtype == dtype
        same(got.values.numpy(), [tf.truncatediv(value, hvd.size()).numpy()] * hvd.size())


@CASES.add
def slices_are_gathered() -> None:
    r, n = hvd.rank(), hvd.size()
    slices = tf.IndexedSlices(
        tf.fill([2, 3], float(r + 1)), tf.constant([r, r + 1], tf.int64), tf.constant([n + 1, 3], tf.int64)
    )
    for op, share in ((hvd.Sum, 1), (hvd.Average, n)):
        for function in (hvd.allreduce, lambda s, op: hvd.grouped_allreduce([tf.ones(2), s], op=op)[1]):
            got = function(slices, op=op)
            assert isinstance(got, tf.IndexedSlices)
            dense = tf.convert_to_tensor(got).numpy()
            expected = np.zeros((n + 1, 3), np.float32)
            for rank in range(n):
                expected[rank] += (rank + 1) / share
                expected[rank + 1] += (rank + 1) / share
            same(dense, expected)
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(slices, op=op)
        with pytest.raises(NotImplementedError):
            hvd.grouped_allreduce([tf.ones(2), slices], op=op)
    with pytest.raises(NotImplementedError):
        hvd.allreduce(slices, op=hvd.Sum, prescale_factor=2.0)


@CASES.add
def compression_travels_as_half() -> None:
    for compression, dtype in ((hvd.Compression.fp16, tf.float16), (hvd.Compression.bf16, tf.bfloat16)):
        for kind in (tf.float16, tf.float32, tf.float64):
            compressed, context = compression.compress(tf.ones([2], kind))
            assert (compressed.dtype, context) == (dtype, kind)
            assert compression.decompress(compressed, context).dtype == kind
            same(hvd.allreduce(tf.ones([2], kind), compression=compression).numpy(), np.ones(2, kind.name))
        for kind in (tf.int32, tf.bool):
            assert compression.compress(tf.cast([1], kind))[0].dtype == kind


# -- transfers ----------------------------------------------------------------------------------------------


def gathers(dtype: Any) -> None:
    r, n = hvd.rank(), hvd.size()
    given = [
        [mine(rank, (rows[rank], *rest), dtype) for rank in range(n)]
        for rows in ([2] * n, [(rank * 5) % 4 for rank in range(n)])
        for rest in ((), (3,), (2, 2))
    ]
    for results in all_in_every_way([(hvd.allgather, arrays[r]) for arrays in given]):
        for got, arrays in zip(results, given, strict=True):
            same(got, np.concatenate(arrays))


def broadcasts(dtype: Any) -> None:
    given = [(root, shape) for root in range(hvd.size()) for shape in SHAPES]
    calls = [
        (functools.partial(hvd.broadcast, root_rank=root), mine(hvd.rank(), shape, dtype))
        for root, shape in given
    ]
    for results in all_in_every_way(calls):
        for got, (root, shape) in zip(results, given, strict=True):
            same(got, mine(root, shape, dtype))


def sends(dtype: Any) -> None:
    r, n = hvd.rank(), hvd.size()
    own = np.full(((r + 1) * n + 1, 2), r % 2).astype(dtype.as_numpy_dtype)  # a row stays
    expected = np.concatenate([np.full((rank + 1, 2), rank % 2) for rank in range(n)])
    even = np.repeat(np.arange(n), 2).astype(dtype.as_numpy_dtype)
    calls: list[tuple[Any, Any]] = [
        (functools.partial(hvd.alltoall, splits=[r + 1] * n), own),
        (hvd.alltoall, even),
    ]
    for (got, received), evenly in all_in_every_way(calls):
        same(got, expected.astype(own.dtype))
        same(received, np.arange(1, n + 1, dtype=np.int32))
        same(evenly, np.full(2 * n, r).astype(even.dtype))


for _dtype in MOVED:
    CASES.add_as(f"allgather_{_dtype.name}", functools.partial(gathers, _dtype))
    CASES.add_as(f"broadcast_{_dtype.name}", functools.partial(broadcasts, _dtype))
    CASES.add_as(f"alltoall_{_dtype.name}", functools.partial(sends, _dtype))


@CASES.add
def alltoall_of_nothing() -> None:
    r, n = hvd.rank(), hvd.size()
    splits = int32([0 if r == 0 or to == n - 1 else 2 for to in range(n)])
    own = np.full((int(splits.sum()), 3), r, np.float32)
    for got, received in every_way(lambda t: hvd.alltoall(t, splits=splits), own).values():
        expected = int32([0 if rank == 0 or r == n - 1 else 2 for rank in range(n)])
        same(received, expected)
        same(got, np.repeat(np.arange(n), expected).astype(np.float32)[:, None] * np.ones((1, 3), np.float32))


@CASES.add
def groups_are_gathered() -> None:
    r, n = hvd.rank(), hvd.size()
    arrays = [np.full((r + i, 2), r + 10 * i, np.float32) for i in range(1, 4)]
    for group in every_way(lambda *ts: hvd.grouped_allgather(list(ts)), *arrays).values():
        for i, got in enumerate(group, 1):
            same(got, np.concatenate([np.full((k + i, 2), k + 10 * i, np.float32) for k in range(n)]))
    assert hvd.grouped_allgather([]) == []


@CASES.add
def rows_are_shared_out() -> None:
    r, n = hvd.rank(), hvd.size()
    for dtype in (tf.int32, tf.int64, tf.float16, tf.float32, tf.float64, tf.bfloat16):
        for rows in (4 * n, 4 * n + n // 2):
            begins = np.cumsum([0, *(rows // n + (rank < rows % n) for rank in range(n))])
            everybody = of_all((rows, 3), dtype)
            calls: list[tuple[Any, Any]] = []
            shares = []
            for op, expected in ((hvd.Sum, REDUCTIONS["sum"][1]), (hvd.Average, average)):
                calls += [
                    (functools.partial(hvd.reducescatter, op=op), everybody[r]),
                    (lambda t, op=op: hvd.grouped_reducescatter([t, t], op=op), everybody[r]),
                ]
                shares.append(expected(everybody)[begins[r] : begins[r + 1]])
            for summed, pair_summed, averaged, pair_averaged in all_in_every_way(calls):
                for got in (summed, *pair_summed):
                    same(got, shares[0])
                for got in (averaged, *pair_averaged):
                    same(got, shares[1])


@CASES.add
def shapes_are_known_as_far_as_they_can_be() -> None:
    seen: dict[str, Any] = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None)])  # type: ignore[untyped-decorator]
    def function(known: Any, unknown: Any) -> Any:
        made = {
            "allreduce": hvd.allreduce(known),
            "unknown": hvd.allreduce(unknown),
            "allgather": hvd.allgather(known),
            "gathered unknown": hvd.allgather(unknown),
            "reducescatter": hvd.reducescatter(known),
            "alltoall": hvd.alltoall(known),
        }
        seen.update({name: tensor.shape for name, tensor in made.items()})
        return made

    function(tf.ones([hvd.size(), 3]), tf.ones([2]))
    assert seen["allreduce"].as_list() == [None, 3]
    assert seen["unknown"].rank is None
    assert seen["gathered unknown"].rank is None
    for name in ("allgather", "reducescatter", "alltoall"):
        assert seen[name].as_list() == [None, 3], name


# -- what graphs do to ops ----------------------------------------------------------------------------------


@CASES.add
def an_unused_result_is_exchanged_all_the_same() -> None:
    """Only rank 0 looks at the result; the others must still take part."""

    @tf.function  # type: ignore[untyped-decorator]
    def function(t: Any) -> Any:
        total = hvd.allreduce(t, op=hvd.Sum, name="unused")
        return total if hvd.rank() == 0 else t

    for _ in range(3):
        got = function(tf.ones(2)).numpy()
    same(got, float32([hvd.size() if hvd.rank() == 0 else 1] * 2))


@CASES.add
def equal_operations_are_not_merged_and_constants_not_folded() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def function() -> Any:
        constant = tf.constant([1.0])
        return [hvd.allreduce(constant, op=hvd.Sum) for _ in range(3)]

    for _ in range(3):
        for got in function():
            same(got.numpy(), float32([hvd.size()]))


@CASES.add
def loops_and_conditions() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def function(t: Any) -> Any:
        for _ in tf.range(3):
            t = hvd.allreduce(t, op=hvd.Sum)
        return tf.cond(tf.reduce_sum(t) > 0, lambda: hvd.allreduce(t, op=hvd.Max), lambda: t)

    same(function(tf.ones(2)).numpy(), float32([hvd.size() ** 3] * 2))


@CASES.add
def a_saved_function_runs_again() -> None:
    import tempfile

    module = tf.Module()
    module.f = tf.function(
        lambda t: hvd.allreduce(t, op=hvd.Sum), input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        same(tf.saved_model.load(folder).f(tf.ones(3)).numpy(), float32([hvd.size()] * 3))
