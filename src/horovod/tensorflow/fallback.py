"""The ops for a TensorFlow that the glue does not fit: the same functions, made of ``tf.numpy_function``.

They are slower: every call goes through Python, and holds its lock and a thread of TensorFlow. Graphs with
them cannot be saved. Collectives within a ``tf.function`` run one after another, in the order in which they
were written; that order must be the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.collectives.numpy_frontend import collectives
from horovod.errors import HorovodInternalError, InvalidArgumentError, MismatchError, NotInitializedError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "collective",
    "failures_as_of_ops",
    "horovod_join",
    "horovod_local_rank",
    "horovod_local_size",
    "horovod_process_set_included",
    "horovod_rank",
    "horovod_size",
]

_UNKNOWN_SET = -3


@dataclass(frozen=True)
class _Node:
    """An op, as its gradient sees it."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    attributes: dict[str, Any]

    def get_attr(self, name: str) -> Any:
        return self.attributes[name]


def collective(
    type_: str,
    gradient: Callable[[Any, list[Any]], Sequence[Any]],
    on_arrays: Callable[..., Sequence[Any]],
    outputs: Callable[[Sequence[Any]], Sequence[tuple[Any, Any]]],
    inputs: tuple[str, ...] | None,
) -> Callable[..., Any]:
    """See :func:`horovod.tensorflow.native.function`."""

    def function(
        *, tensor_name: str, ignore_name_scope: bool, process_set_id: int, name: str | None, **given: Any
    ) -> Any:
        tensors = given.pop("tensors") if inputs is None else [given.pop(each) for each in inputs]
        key = _key(tensor_name, ignore_name_scope, name)
        attributes = {**given, "ignore_name_scope": ignore_name_scope, "process_set_id": process_set_id}

        def run(*arrays: Any) -> Sequence[Any]:
            return on_arrays(arrays, key, _set(process_set_id), **given)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def op(*known: Any) -> Any:
            dtypes, shapes = zip(*outputs(known), strict=True)
            made = _call(type_, run, known, dtypes, shapes)
            return made, lambda *upstreams: gradient(_Node(known, made, attributes), list(upstreams))

        results = op(*map(tf.convert_to_tensor, tensors))
        return results[0] if len(results) == 1 and inputs is not None else results

    return function


def _call(
    type_: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    shapes: Sequence[Any],
) -> list[Any]:
    """An op that calls ``function`` with the arrays of ``inputs``. TensorFlow may not drop, merge or reorder
    it."""

    eager = tf.executing_eagerly()

    def run(*arrays: Any) -> list[Any]:
        with failures_as_of_ops(type_, eager):
            results = function(*(np.asarray(array, order="C") for array in arrays))
        return [np.asarray(result) for result in results]

    if eager:  # numpy_function would call it at once, too, but cannot make an array of bfloat16
        return [tf.convert_to_tensor(result) for result in run(*(each.numpy() for each in inputs))]
    made = tf.numpy_function(run, list(inputs), list(outputs), stateful=True, name=type_)
    results = made if isinstance(made, list | tuple) else [made]
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


@contextmanager
def failures_as_of_ops(type_: str, eager: bool = True) -> Iterator[None]:
    """Raise failures of the block as the native op of that type would."""
    try:
        yield
    except (HorovodInternalError, ValueError, NotImplementedError) as error:
        raise _translated(type_, error, eager) from error


def _translated(type_: str, error: Exception, eager: bool) -> Exception:
    """``error`` as the native ops would raise it. In a graph TensorFlow itself translates exceptions of
    Python: a ``ValueError`` into InvalidArgumentError, nearly everything else into UnknownError."""
    text = f"{type_}: {error}"
    if isinstance(error, MismatchError | NotInitializedError) or not lifecycle.is_initialized():
        return tf.errors.FailedPreconditionError(None, None, text)  # type: ignore[no-any-return]
    if isinstance(error, ValueError):
        return tf.errors.InvalidArgumentError(None, None, text) if eager else InvalidArgumentError(text)
    return tf.errors.UnknownError(None, None, text)  # type: ignore[no-any-return]


def _set(number: int) -> ProcessSet:
    """The process set of that number, as an object for the code that all frameworks share."""
    if number == 0:
        return global_process_set
    ranks = lifecycle.current().engine.process_sets().get(number)
    if ranks is None:
        raise InvalidArgumentError(f"process set {number} does not exist (any more)")
    process_set = ProcessSet(ranks)
    process_set.process_set_id = number
    return process_set


def _key(tensor_name: str, ignore_name_scope: bool, name: str | None) -> str | None:
    """The name by which ranks recognise the operation. In a graph that is the name that its node would have,
    with the scopes around it, and a number if there is another of that name."""
    key = tensor_name or name
    if key is None or tf.executing_eagerly():
        return key and (key.rpartition("/")[2] if ignore_name_scope else key)
    if tensor_name:
        scoped = f"{tf.get_current_name_scope()}/{key}".lstrip("/")
    else:
        scoped = tf.compat.v1.get_default_graph().unique_name(key)
    return scoped.rpartition("/")[2] if ignore_name_scope else scoped


# -- the world ----------------------------------------------------------------------------------------------


def _scalar(kind: str, function: Callable[[], int]) -> Any:
    return _call(f"Horovod{kind}", lambda: [np.int32(function())], [], [tf.int32], [[]])[0]


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
