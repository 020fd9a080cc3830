"""The ops: loaded from the glue, or made of ``tf.numpy_function`` where this TensorFlow lacks a name that the
glue needs (``fallback.py``).

``ops`` has the functions that TensorFlow generates for the glue's ops (``horovod_rank`` ...), or functions
with the same arguments; those of the collectives come by :func:`function`.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from horovod.errors import HorovodInternalError
from horovod.runtime import lifecycle

__all__ = ["GLUE", "function", "load", "ops", "problem"]

GLUE: Final = Path(os.environ.get("FARANDOLE_TENSORFLOW_GLUE") or Path(__file__).with_name("_tensorflow.so"))
"""The variable names another build of it, for tests."""


class _World:
    """Tells the glue which engine there is: implements ``world.Follower``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._enter = library.farandole_tf_enter
        self._enter.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int32] * 4
        self._leave: Callable[[], None] = library.farandole_tf_leave

    def enter(self, runtime: lifecycle.Runtime) -> None:
        engine, place = runtime.engine, runtime.topology
        if self._enter(
            engine.capi(), engine.address(), place.rank, place.size, place.local_rank, place.local_size
        ):
            raise HorovodInternalError(
                f"{GLUE} and the native core are of different releases; install Farandole again.",
                recoverable=False,
            )

    def leave(self) -> None:
        self._leave()


def load(glue: Path) -> tuple[Any, str]:
    """The generated functions of the ops in ``glue``, and the empty string; or None, and why not."""
    try:
        module = tf.load_op_library(str(glue))
        library = ctypes.CDLL(str(glue))
    except (tf.errors.NotFoundError, OSError) as error:
        return None, str(error)
    library.farandole_tf_problem.restype = ctypes.c_char_p
    problem = library.farandole_tf_problem().decode()
    if problem:
        return None, problem
    lifecycle.follow(_World(library))
    return module, ""


def function(
    type_: str,
    gradient: Callable[[Any, list[Any]], Sequence[Any]],
    on_arrays: Callable[..., Sequence[Any]],
    outputs: Callable[[Sequence[Any]], Sequence[tuple[Any, Any]]],
    inputs: tuple[str, ...] | None,
) -> Callable[..., Any]:
    """The function that makes ops of a type (``HorovodAllreduce``), and registers their ``gradient``; see
    :func:`horovod.tensorflow.calls.define`. ``inputs``: None for ops of a group."""
    if problem:
        made: Callable[..., Any] = ops.collective(type_, gradient, on_arrays, outputs, inputs)
        return made
    tf.RegisterGradient(type_)(lambda node, *upstreams: gradient(node, list(upstreams)))
    _let_run_at_once(type_)
    generated: Callable[..., Any] = getattr(ops, re.sub(r"(?<!^)(?=[A-Z])", "_", type_).lower())
    return generated


def _let_run_at_once(type_: str) -> None:
    """Let ops of that type overlap.

    A ``tf.function`` runs ops with effects one after another, in the order in which they were written.
    Collectives need no order: ranks recognise them by their names.

    TensorFlow's list of ops without an order is not public. Without it collectives are merely serialised.
    """
    try:
        from tensorflow.python.framework import auto_control_deps
    except ImportError:
        return
    known = getattr(auto_control_deps, "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS", None)
    if isinstance(known, frozenset):
        auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = known | {type_}


def _leave_unconverted() -> None:
    """Let AutoGraph leave our code alone.

    AutoGraph rewrites the Python that a ``tf.function`` calls. Our code does not need that, and it takes one
    or two seconds of the first trace in every process.

    TensorFlow's list of packages to leave alone is not public. Without it the first trace merely takes
    longer.
    """
    try:
        from tensorflow.python.autograph.core import config, config_lib

        rules = tuple(config.CONVERSION_RULES)
        ours = config_lib.DoNotConvert("horovod")
    except (ImportError, AttributeError, TypeError):
        return
    config.CONVERSION_RULES = (ours, *rules)


def _choose() -> tuple[Any, str]:
    generated, problem = load(GLUE)
    if generated is not None:
        return generated, ""
    warnings.warn(
        f"TensorFlow {tf.__version__} cannot run Farandole's native ops ({problem}); collectives go through "
        "tf.numpy_function, which is slower and holds Python's lock. Please report this.",
        RuntimeWarning,
        stacklevel=2,
    )
    # Each exchange holds a thread of TensorFlow until all ranks have come to it. Ranks come to those of a
    # graph in different orders, so with few threads they would wait for each other.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "64")
    from horovod.tensorflow import fallback

    return fallback, problem


_leave_unconverted()
ops, problem = _choose()

for _type in ("Join", "Size", "ProcessSetIncluded", "LocalSize", "Rank", "LocalRank"):
    tf.no_gradient(f"Horovod{_type}")
