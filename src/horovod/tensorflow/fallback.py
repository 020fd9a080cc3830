"""The ops where the glue does not fit this TensorFlow: the same functions, made of ``tf.numpy_function``.

Slower: every call goes through Python, holds its lock and a thread of TensorFlow; and graphs with them cannot
be saved. Collectives within a ``tf.function`` run one after another, in the order in which they were written,
which must be the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from horovod.collectives.numpy_frontend import collectives
from horovod.errors import (
    HorovodInternalError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
)
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "horovod_allgather",
    "horovod_allreduce",
    "horovod_alltoall",
    "horovod_broadcast",
    "horovod_grouped_allgather",
    "horovod_grouped_allreduce",
    "horovod_grouped_reducescatter",
    "horovod_join",
    "horovod_local_rank",
    "horovod_local_size",
    "horovod_process_set_included",
    "horovod_rank",
    "horovod_reducescatter",
    "horovod_size",
]

_UNKNOWN_SET = -3

gradients: Final[dict[str, Callable[..., Any]]] = {}
"""How these ops are differentiated. ``horovod.tensorflow.gradients`` fills it, which is made of these ops."""


def _call(
    kind: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    shapes: Sequence[Any],
) -> list[Any]:
    """``function`` of the arrays of ``inputs`` as an op; it may not be dropped, merged or run early."""

    eager = tf.executing_eagerly()

    def run(*arrays: Any) -> list[Any]:
        try:
            results = function(*(np.asarray(array, order="C") for array in arrays))
        except (HorovodInternalError, ValueError, NotImplementedError) as error:
            raise _translated(kind, error, eager) from error
        return [np.asarray(result) for result in results]

    if eager:  # numpy_function would call it at once, too, but cannot make an array of bfloat16
        return [tf.convert_to_tensor(result) for result in run(*(each.numpy() for each in inputs))]
    made = tf.numpy_function(run, list(inputs), list(outputs), stateful=True, name=f"Horovod{kind}")
    results = made if isinstance(made, list | tuple) else [made]
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


def _translated(kind: str, error: Exception, eager: bool) -> Exception:
    """``error`` as the native ops would say it. In a graph TensorFlow translates what Python raises by
    itself: a ``ValueError`` into InvalidArgumentError, nearly everything else into UnknownError."""
    text = f"Horovod{kind}: {error}"
    if isinstance(error, MismatchError | NotInitializedError) or not lifecycle.is_initialized():
        return tf.errors.FailedPreconditionError(None, None, text)  # type: ignore[no-any-return]
    if isinstance(error, ValueError):
        return tf.errors.InvalidArgumentError(None, None, text) if eager else InvalidArgumentError(text)
    return tf.errors.UnknownError(None, None, text)  # type: ignore[no-any-return]


def _set(number: int) -> ProcessSet:
    """The process set of that number, as the neutral code wants it."""
    if number == 0:
        return global_process_set
    ranks = lifecycle.current().engine.process_sets().get(number)
    if ranks is None:
        raise InvalidArgumentError(f"process set {number} does not exist (any more)")
    process_set = ProcessSet(ranks)
    process_set.process_set_id = number
    return process_set


def _key(tensor_name: str, ignore_name_scope: bool, name: str | None) -> str | None:
    """What ranks recognise the operation by: in a graph what its node would be called, with the scopes around
    it and a number if there is another of that name."""
    key = tensor_name or name
    if key is None or tf.executing_eagerly():
        return key and (key.rpartition("/")[2] if ignore_name_scope else key)
    if tensor_name:
        scoped = f"{tf.get_current_name_scope()}/{key}".lstrip("/")
    else:
        scoped = tf.compat.v1.get_default_graph().unique_name(key)
    return scoped.rpartition("/")[2] if ignore_name_scope else scoped


def _rows(tensor: Any) -> Any:
    """The static shape of ``tensor`` with any number of rows."""
    shape = tensor.shape
    if shape.rank == 0:
        raise InvalidArgumentError("Shape must be at least rank 1 but is rank 0")
    return tf.TensorShape(None) if shape.rank is None else [None, *shape[1:]]


def _group(
    kind: str,
    run: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    shape: Callable[[Any], Any],
    gradient: Callable[[Sequence[Any], list[Any]], Sequence[Any]],
) -> list[Any]:
    """An op of a group, which has a gradient.

    Args:
        run: makes the results of the arrays.
        shape: what is known of the shape of a result, by its tensor.
        gradient: makes the gradients of the tensors, of these and of those of the results.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def op(*inputs: Any) -> Any:
        dtypes, shapes = [x.dtype for x in inputs], [shape(x) for x in inputs]
        outputs = _call(kind, run, inputs, dtypes, shapes)
        return outputs, lambda *upstreams: gradient(inputs, list(upstreams))

    return list(op(*map(tf.convert_to_tensor, tensors)))


def horovod_grouped_allreduce(
    tensors: Sequence[Any],
    reduce_op: int,
    tensor_name: str = "",
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set_id: int = 0,
    name: str | None = None,
) -> list[Any]:
    key = _key(tensor_name, ignore_name_scope, name)
    how = reduce_op, prescale_factor, postscale_factor

    def run(*arrays: Any) -> Any:
        outs = [np.empty_like(array) for array in arrays]
        return collectives.run_grouped_allreduce(arrays, outs, key, *how, _set(process_set_id))

    def gradient(_: Sequence[Any], upstreams: list[Any]) -> Any:
        return gradients["grouped_allreduce"](upstreams, *how, process_set_id, ignore_name_scope)

    return _group("GroupedAllreduce", run, tensors, lambda x: x.shape, gradient)


def horovod_allreduce(tensor: Any, reduce_op: int, **how: Any) -> Any:
    return horovod_grouped_allreduce([tensor], reduce_op, **how)[0]


def horovod_grouped_reducescatter(
    tensors: Sequence[Any],
    reduce_op: int,
    tensor_name: str = "",
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set_id: int = 0,
    name: str | None = None,
) -> list[Any]:
    key = _key(tensor_name, ignore_name_scope, name)
    how = reduce_op, prescale_factor, postscale_factor

    def run(*arrays: Any) -> Any:
        handle = collectives.grouped_reducescatter(arrays, key, *how, _set(process_set_id), waited=True)
        return collectives.synchronize(handle)

    def gradient(_: Sequence[Any], upstreams: list[Any]) -> Any:
        return [
            gradients["reducescatter"](each, *how, process_set_id, ignore_name_scope) for each in upstreams
        ]

    return _group("GroupedReducescatter", run, tensors, _rows, gradient)


def horovod_reducescatter(tensor: Any, reduce_op: int, **how: Any) -> Any:
    return horovod_grouped_reducescatter([tensor], reduce_op, **how)[0]


def horovod_grouped_allgather(
    tensors: Sequence[Any],
    tensor_name: str = "",
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    name: str | None = None,
) -> list[Any]:
    key = _key(tensor_name, ignore_name_scope, name)

    def run(*arrays: Any) -> Any:
        handle = collectives.grouped_allgather(arrays, key, _set(process_set_id), waited=True)
        return collectives.synchronize(handle)

    def gradient(inputs: Sequence[Any], upstreams: list[Any]) -> Any:
        return [
            gradients["allgather"](tensor, upstream, process_set_id, ignore_name_scope)
            for tensor, upstream in zip(inputs, upstreams, strict=True)
        ]

    return _group("GroupedAllgather", run, tensors, _rows, gradient)


def horovod_allgather(tensor: Any, **how: Any) -> Any:
    return horovod_grouped_allgather([tensor], **how)[0]


def horovod_broadcast(
    tensor: Any,
    root_rank: int,
    tensor_name: str = "",
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    name: str | None = None,
) -> Any:
    key = _key(tensor_name, ignore_name_scope, name)

    def run(array: Any) -> Any:
        made = np.empty_like(array)
        return [collectives.run_broadcast(array, made, root_rank, key, _set(process_set_id))]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def op(given: Any) -> Any:
        (output,) = _call("Broadcast", run, [given], [given.dtype], [given.shape])

        def gradient(upstream: Any) -> Any:
            return gradients["broadcast"](upstream, root_rank, process_set_id, ignore_name_scope)

        return output, gradient

    return op(tf.convert_to_tensor(tensor))


def horovod_alltoall(
    tensor: Any,
    splits: Any,
    tensor_name: str = "",
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    name: str | None = None,
) -> tuple[Any, Any]:
    key = _key(tensor_name, ignore_name_scope, name)

    def run(array: Any, numbers: Any) -> Any:
        return collectives.synchronize(
            collectives.alltoall(array, numbers.tolist(), key, _set(process_set_id), waited=True)
        )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def op(given: Any, numbers: Any) -> Any:
        output, received = _call(
            "Alltoall", run, [given, numbers], [given.dtype, tf.int32], [_rows(given), [None]]
        )

        def gradient(upstream: Any, _: Any) -> Any:
            return gradients["alltoall"](given, upstream, received, process_set_id, ignore_name_scope), None

        return (output, received), gradient

    output, received = op(tf.convert_to_tensor(tensor), splits)
    return output, received


# -- the world ----------------------------------------------------------------------------------------------


def _scalar(kind: str, function: Callable[[], int]) -> Any:
    return _call(kind, lambda: [np.int32(function())], [], [tf.int32], [[]])[0]


def _members(number: int) -> list[int] | None:
    return lifecycle.current().engine.process_sets().get(number)


def horovod_join() -> Any:
    return _scalar("Join", collectives.join)


def horovod_size(process_set_id: int = 0, name: str | None = None) -> Any:
    def size() -> int:
        members = _members(process_set_id)
        return _UNKNOWN_SET if members is None else len(members)

    return _scalar("Size", size)


def horovod_process_set_included(process_set_id: int = 0, name: str | None = None) -> Any:
    def included() -> int:
        members = _members(process_set_id)
        if members is None:
            return _UNKNOWN_SET
        return int(lifecycle.current().topology.rank in members)

    return _scalar("ProcessSetIncluded", included)


def horovod_local_size(name: str | None = None) -> Any:
    return _scalar("LocalSize", lambda: lifecycle.current().topology.local_size)


def horovod_rank(name: str | None = None) -> Any:
    return _scalar("Rank", lambda: lifecycle.current().topology.rank)


def horovod_local_rank(name: str | None = None) -> Any:
    return _scalar("LocalRank", lambda: lifecycle.current().topology.local_rank)
