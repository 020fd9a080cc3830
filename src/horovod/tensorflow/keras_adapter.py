"""Keras on TensorFlow, of both generations. ``horovod.tensorflow`` does the work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from horovod._keras.frameworks.contract import Branch, Framework
from horovod.collectives.ops import Sum
from horovod.errors import HorovodError, HorovodInternalError, InvalidArgumentError, ReplicasDifferError
from horovod.gradients.reduction import PartialReduction
from horovod.gradients.settings import GradientSettings
from horovod.tensorflow import gradient_reduction, keras2_optimizer, mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.mpi_ops import _allreduce
from horovod.tensorflow.util import raw

__all__ = ["ADAPTER", "TensorFlowFramework", "moments_of_all_ranks"]

# Types of our operations, except those that ask about the world; the fall-back writes them into errors, too.
_OURS: Final = re.compile(r"Horovod(?!(Local)?(Rank|Size)|ProcessSet)[A-Z]")
_DIFFER: Final = re.compile(r"ReplicasDifferError: (Replicas differ: .*)")


class TensorFlowFramework(Framework):
    """TensorFlow, whose collectives XLA cannot compile."""

    Compression = Compression
    collectives = mpi_ops

    def reduction(self, settings: GradientSettings) -> PartialReduction:
        return gradient_reduction.reduction(settings)

    def legacy_optimizer(self, optimizer: Any, settings: GradientSettings) -> Any:
        return keras2_optimizer.distributed(optimizer, settings)

    def gradients(self, loss: Any, variables: Sequence[Any], grad_loss: Any, tape: Any) -> list[Any]:
        plain = [raw(variable) for variable in variables]
        if callable(loss):
            with tf.GradientTape() as tape:
                tape.watch(plain)
                loss = loss()
        if tape is not None:
            return list(tape.gradient(loss, plain, grad_loss))
        if tf.executing_eagerly():
            raise InvalidArgumentError(
                "In eager mode the gradients of a tensor need the tape that saw it computed: pass tape=, or "
                "a function that computes the loss."
            )
        return list(tf.gradients(loss, plain, grad_loss))

    def note_reduced(self, gradients: Sequence[Any]) -> None:
        gradient_reduction.mark(gradients)

    def is_reduced(self, gradient: Any) -> bool:
        return gradient_reduction.is_marked(gradient)

    def dense(self, gradient: Any) -> Any | None:
        return gradient_reduction.densified(gradient) if isinstance(gradient, tf.IndexedSlices) else None

    def refuse_compiled(self) -> None:
        if tf.executing_eagerly():
            return
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise HorovodInternalError(
                "The training step is compiled by XLA, which cannot exchange gradients with other processes. "
                "Pass jit_compile=False to model.compile() or tf.function(); Keras turns it on by itself "
                "where it finds a GPU. The callbacks of Horovod turn it off, too."
            )

    def keep_uncompiled(self, model: Any) -> bool:
        if getattr(model, "jit_compile", False):
            model.jit_compile = False
            return True
        return False

    def runs_at_once(self, value: Any) -> bool:
        return bool(tf.executing_eagerly())

    def choose(self, condition: Any, if_true: Branch, if_false: Branch, variables: Sequence[Any]) -> Any:
        return tf.cond(condition, if_true, if_false)

    def moments(self, own: Any) -> Any:
        return tf.cast(moments_of_all_ranks(*tf.unstack(tf.cast(own, tf.float64), num=3)), own.dtype)

    def own_failure(self, error: BaseException) -> HorovodError | None:
        if isinstance(error, HorovodInternalError):
            return error
        # TensorFlow makes an UnknownError of what a function of Python raises, with its traceback.
        if isinstance(error, tf.errors.UnknownError) and (said := _DIFFER.search(str(error))):
            return ReplicasDifferError(said[1])
        if isinstance(error, tf.errors.OpError) and _OURS.search(text := str(error)):
            failure = HorovodInternalError(text, recoverable=_may_be_mended(error))
            failure.__cause__ = error
            return failure
        return None

    def computed(self, value: Any) -> Any:
        # The session of Keras 2; Keras 3 has none.
        return tf.compat.v1.keras.backend.get_session().run(value) if self.in_session() else value

    def in_session(self) -> bool:
        return not tf.compat.v1.executing_eagerly_outside_functions()

    def broadcast_global_variables(self, root_rank: int) -> Any:
        if not self.in_session():
            return super().broadcast_global_variables(root_rank)
        return self.computed(broadcast_global_variables(root_rank))

    def tensor(self, value: Any, name: str | None) -> Any:
        return tf.convert_to_tensor(value, name=None if name is None else f"{name}_value")


def _may_be_mended(error: tf.errors.OpError) -> bool:
    """Return whether a new world can mend the error. Our ops report a mismatch and the lack of a world as
    FailedPrecondition, and a refused argument as one of the other two."""
    refused = tf.errors.FailedPreconditionError | tf.errors.InvalidArgumentError | tf.errors.AbortedError
    return not isinstance(error, refused)


ADAPTER = TensorFlowFramework()


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
