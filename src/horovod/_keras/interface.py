"""The names that ``horovod.keras`` and ``horovod.tensorflow.keras`` have in common, for the Keras of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horovod import _keras
from horovod._keras.frameworks import framework
from horovod._keras.variables import allgather_object as allgather_object
from horovod._keras.variables import broadcast_object as broadcast_object
from horovod._keras.variables import broadcast_variables as broadcast_variables
from horovod.collectives.ops import Average as Average
from horovod.collectives.ops import reduce_op
from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.errors import HorovodInternalError as HorovodInternalError
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.groups import Groups
from horovod.gradients.variables import local_weights
from horovod.runtime.process_set import ProcessSet, global_process_set

if not TYPE_CHECKING:
    __all__ = ["Interface"]

_ON_ANY_KERAS = (
    "HorovodInternalError",
    "allgather_object",
    "broadcast_object",
    "broadcast_variables",
    *everywhere.__all__,
)


class Interface:
    """Functions that depend on Keras or its framework, and have one signature in both modules.

    Args:
        keras: the module.
    """

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        self._framework = framework(keras.backend.backend())
        self.Compression = self._framework.Compression

    def names(self) -> dict[str, Any]:
        """All that both modules offer, by name."""
        own = [name for name in vars(Interface) if not name.startswith("_") and name != "names"]
        return {
            **{name: globals()[name] for name in _ON_ANY_KERAS},
            **{name: getattr(self, name) for name in ["Compression", *own]},
        }

    def DistributedOptimizer(
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoneCompressor,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        num_groups: int = 0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> Any:
        """An optimizer like ``optimizer``, with its state, that reduces gradients over all ranks before it
        uses them.

        Its class is a subclass of the given one with the same name, so that saved models load without
        Horovod. With Keras 3 everything that ends in ``apply`` reduces: ``fit``, ``apply_gradients``,
        ``stateless_apply``; gradients of a ``DistributedGradientTape`` are taken as they are. With Keras 2
        ``minimize`` and ``fit`` reduce, and ``apply_gradients`` alone does not.

        Args:
            optimizer: of Keras.
            name: the start of the names of the operations, by default from the class; different for
                optimizers that are used at the same time.
            device_dense, device_sparse: where TensorFlow reduces dense gradients and ``IndexedSlices``.
            compression: around the reduction of dense gradients, one of ``Compression``.
            sparse_as_dense: reduce ``IndexedSlices`` as dense tensors.
            gradient_predivide_factor: with ``Average``, divide by this before the sum and by the rest
                after it.
            op: ``Average`` or ``Sum``.
            backward_passes_per_step: sum gradients of so many passes locally before they are reduced and
                used; ``iterations`` counts passes.
            average_aggregated_gradients: divide what was summed by ``backward_passes_per_step``.
            num_groups: deprecated, use ``groups``.
            groups: a number of groups, or lists of variables, whose gradients are reduced as one operation;
                by default one for each dtype.
            process_set: ranks whose gradients are combined.
            scale_local_gradients: divide gradients of variables that are given to ``register_local_var`` by
                the number of ranks.

        Raises:
            ValueError: an argument is wrong, see each message.
        """
        return _keras.distributed(self._keras, locals())

    def PartialDistributedOptimizer(
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoneCompressor,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        local_layers: Any = None,
        scale_local_gradients: bool = True,
    ) -> Any:
        """A ``DistributedOptimizer`` that does not reduce the gradients of some layers.

        Args:
            local_layers: a built layer, or a list, tuple or set of layers, whose trainable weights belong to
                this rank alone; ``None``: no layer.

        Raises:
            ValueError: an argument is wrong, see each message.
        """
        weights = local_weights(local_layers)
        made = _keras.distributed(self._keras, locals())
        for weight in weights:
            made.register_local_var(weight)
        return made

    def allreduce(
        self,
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: Any = NoneCompressor,
    ) -> Any:
        """Reduce a number, list or array over all ranks; returns a tensor.

        Args:
            average: deprecated, use ``op``.
            op: by default ``Average``.
        """
        return self._collective(
            "allreduce",
            value,
            name,
            op=reduce_op(op, average),
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
        )

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Make the global variables of a v1 graph those of ``root_rank``.

        Raises:
            RuntimeError: there is no graph; Keras 3 never has one: use ``broadcast_variables``.
        """
        return _keras.broadcast_global_variables(self._keras.backend, root_rank)

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """Concatenate the lists or arrays of all ranks, whose length may differ; returns a tensor."""
        return self._collective("allgather", value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """The number, list or array of ``root_rank`` on every rank, as a tensor."""
        return self._collective("broadcast", value, name, root_rank=root_rank)

    def reduce(
        self,
        value: Any,
        root_rank: int,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Any:
        """Reduce a number, list or array over all ranks: the result on ``root_rank``, elsewhere ``value``, as
        a tensor."""
        return self._collective(
            "reduce",
            value,
            name,
            root_rank=root_rank,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduce a list or array over all ranks and return this rank's share of its rows, as a tensor."""
        return self._collective("reducescatter", value, name, op=op)

    def _collective(self, kind: str, value: Any, name: str | None, **how: Any) -> Any:
        return _keras.collective(kind, self._keras.backend, value, name, **how)

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Any = None,
        custom_objects: Mapping[str, Any] | None = None,
        compression: Any = NoneCompressor,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a model, whose optimizer comes back distributed: with its state, learning rate and iterations.

        Args:
            filepath: what Keras saved, with Horovod or without.
            custom_optimizers: classes of optimizers that are not part of Keras.
            custom_objects: other classes by their names in the file.
            compression: for the optimizer.
            legacy_opts: the file has an optimizer of before Keras 2.11.

        Raises:
            ValueError: ``legacy_opts`` with Keras 3.
        """

        def wrap(optimizer: Any) -> Any:
            return self.PartialDistributedOptimizer(optimizer, compression=compression)

        return _keras.load_model(self._keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)


if TYPE_CHECKING:  # what a module gets by `names`, for those who read it without running it
    _one = Interface(None)
    Compression = _one.Compression
    DistributedOptimizer = _one.DistributedOptimizer
    PartialDistributedOptimizer = _one.PartialDistributedOptimizer
    allgather = _one.allgather
    allreduce = _one.allreduce
    broadcast = _one.broadcast
    broadcast_global_variables = _one.broadcast_global_variables
    load_model = _one.load_model
    reduce = _one.reduce
    reducescatter = _one.reducescatter
