"""``DistributedGradientTape``: a gradient tape whose gradients are reduced over the ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from horovod.collectives.ops import Average
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.groups import Groups
from horovod.gradients.reduction import PartialReduction
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import local_weights
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.tensorflow.gradient_reduction import mark, reduction

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """The class that ``DistributedGradientTape`` puts before that of the given tape."""

    _horovod_reduction: PartialReduction

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The reduced gradients of ``target`` with respect to ``sources``.

        Args:
            sources: a variable or tensor, or a structure of them.
            output_gradients: of ``target``; ones by default.
            use_generic_names: match gradients of the ranks by their number alone, also where the graphs of
                the ranks differ.
            unconnected_gradients: what stands for a gradient that does not exist.

        Returns:
            A list for a flat list or tuple of sources, otherwise their structure.

        Raises:
            ValueError: ``init()`` has not been called.
            HorovodInternalError, tf.errors.OpError: the exchange failed.
        """
        flat = tf.nest.flatten(sources)
        gradients = super().gradient(
            target, flat, output_gradients, unconnected_gradients=unconnected_gradients
        )
        reduced = self._horovod_reduction(gradients, flat, use_generic_names=use_generic_names)
        # An optimizer that reduces as well leaves marked gradients alone.
        mark([gradient for gradient in reduced if gradient is not None])
        if isinstance(sources, list | tuple) and not any(tf.nest.is_nested(source) for source in sources):
            return reduced
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Do not reduce the gradient of ``source``, a variable or tensor that belongs to this rank alone."""
        self._horovod_reduction.register(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """:meth:`gradient` as two lists of pairs (source, gradient): of the sources that are registered as
        local, and of the others."""
        flat = tf.nest.flatten(sources)
        gradients = self.gradient(target, flat, output_gradients, use_generic_names, unconnected_gradients)
        own: list[tuple[Any, Any]] = []
        common: list[tuple[Any, Any]] = []
        for source, gradient in zip(flat, gradients, strict=True):
            (own if source in self._horovod_reduction.local else common).append((source, gradient))
        return own, common


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> _DistributedGradientTape:
    """A tape that gives the gradients of what ``gradtape`` recorded, reduced over the ranks.

    Both tapes share the record: after ``gradient()`` of a tape that is not persistent, neither can be used
    again. The new tape may also be made before recording, and record as a context manager itself.
    ``jacobian()`` and ``batch_jacobian()`` are not reduced.

    Args:
        gradtape: an instance of ``tf.GradientTape``; the result is an instance of a subclass of its class.
        device_dense, device_sparse: where dense gradients and ``IndexedSlices`` are reduced.
        compression: around the reduction of each dense gradient: one of ``Compression``, or a class of your
            own.
        sparse_as_dense: reduce ``IndexedSlices`` as dense tensors.
        op: the reduction. ``Adasum`` combines gradients here, not the steps of an optimizer.
        gradient_predivide_factor: with ``Average``, divide by this before the sum and by the rest after it.
        num_groups: deprecated, use ``groups``.
        groups: a number of groups to cut the gradients into, or lists of variables; the gradients of a group
            are reduced as one operation. By default there is one operation for each dtype.
        process_set: ranks whose gradients are combined; others get their own gradients.
        scale_local_gradients: divide gradients of sources that are registered as local by the number of
            ranks, the scale of an average.

    Raises:
        ValueError: an argument is wrong, see each message.
    """
    return _distributed(gradtape, GradientSettings.of(locals()))


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> _DistributedGradientTape:
    """:func:`DistributedGradientTape` that does not reduce the gradients of some layers.

    Args:
        local_layers: a Keras layer, or a list, tuple or set of layers, whose trainable weights belong to this
            rank alone; ``None``: no layer.

    Raises:
        ValueError: an argument is wrong, see each message.
    """
    weights = local_weights(local_layers)
    tape = _distributed(gradtape, GradientSettings.of(locals()))
    for weight in weights:
        tape.register_local_source(weight)
    return tape


def _distributed(gradtape: tf.GradientTape, settings: GradientSettings) -> _DistributedGradientTape:
    cls = type(gradtape)
    distributed: Any = type(cls.__name__, (_DistributedGradientTape, cls), {})
    # Not by the constructor, which would begin a new record.
    tape: _DistributedGradientTape = object.__new__(distributed)
    tape.__dict__.update(gradtape.__dict__)
    tape._horovod_reduction = reduction(replace(settings, name="DistributedGradientTape"))
    return tape
