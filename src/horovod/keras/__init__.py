"""``import horovod.keras as hvd``: data-parallel training with Keras, on TensorFlow, PyTorch or JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from horovod import _keras
from horovod._keras.frameworks import framework
from horovod._keras.variables import allgather_object, broadcast_object, broadcast_variables
from horovod.collectives import Adasum, Average, Max, Min, Product, Sum
from horovod.common.basics import HorovodBasics
from horovod.errors import HorovodInternalError
from horovod.gradient_groups import Groups, chosen_groups, local_weights
from horovod.keras import callbacks, elastic
from horovod.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_basics = HorovodBasics(__file__)
_framework = framework(keras.backend.backend())

Compression = _framework.Compression

init = _framework.init
shutdown = _framework.shutdown
ccl_built = _basics.ccl_built
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
cuda_built = _basics.cuda_built
ddl_built = _basics.ddl_built
gloo_built = _basics.gloo_built
gloo_enabled = _basics.gloo_enabled
is_homogeneous = _basics.is_homogeneous
is_initialized = _basics.is_initialized
local_rank = _basics.local_rank
local_size = _basics.local_size
mpi_built = _basics.mpi_built
mpi_enabled = _basics.mpi_enabled
mpi_threads_supported = _basics.mpi_threads_supported
nccl_built = _basics.nccl_built
rank = _basics.rank
rocm_built = _basics.rocm_built
size = _basics.size
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like ``optimizer``, with its state, that reduces gradients over all ranks before it uses
    them.

    Its class is a subclass of the given one with the same name, so that saved models load without Horovod.
    With Keras 3 everything that ends in ``apply`` reduces: ``fit``, ``apply_gradients``,
    ``stateless_apply``; gradients of a ``DistributedGradientTape`` are taken as they are. With Keras 2
    ``minimize`` and ``fit`` reduce, and ``apply_gradients`` alone does not.

    Args:
        optimizer: of Keras.
        name: the start of the names of the operations, by default from the class; different for optimizers
            that are used at the same time.
        device_dense, device_sparse: where TensorFlow reduces dense gradients and ``IndexedSlices``.
        compression: around the reduction of dense gradients, one of ``Compression``.
        sparse_as_dense: reduce ``IndexedSlices`` as dense tensors.
        gradient_predivide_factor: with ``Average``, divide by this before the sum and by the rest after it.
        op: ``Average`` or ``Sum``.
        backward_passes_per_step: sum gradients of so many passes locally before they are reduced and used;
            ``iterations`` counts passes.
        average_aggregated_gradients: divide what was summed by ``backward_passes_per_step``.
        num_groups: deprecated, use ``groups``.
        groups: a number of groups, or lists of variables, whose gradients are reduced as one operation; by
            default one for each dtype.
        process_set: ranks whose gradients are combined.
        scale_local_gradients: divide gradients of variables that are given to ``register_local_var`` by the
            number of ranks.

    Raises:
        ValueError: an argument is wrong, see each message.
    """
    return _keras.create_distributed_optimizer(
        keras,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        chosen_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
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
    """A :func:`DistributedOptimizer` that does not reduce the gradients of some layers.

    Args:
        local_layers: a built layer, or a list, tuple or set of layers, whose trainable weights belong to this
            rank alone; ``None``: no layer.

    Raises:
        ValueError: an argument is wrong, see each message.
    """
    weights = local_weights(local_layers)
    made = _keras.create_distributed_optimizer(
        keras,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        chosen_groups(0, groups),
        process_set,
        scale_local_gradients,
    )
    for weight in weights:
        made.register_local_var(weight)
    return made


def broadcast_global_variables(root_rank: int) -> Any:
    """Make the global variables of a v1 graph those of ``root_rank``.

    Raises:
        RuntimeError: there is no graph; Keras 3 never has one: use :func:`broadcast_variables`.
    """
    return _keras.broadcast_global_variables(keras.backend, root_rank)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a number, list or array over all ranks; returns a tensor.

    Args:
        average: deprecated, use ``op``.
        op: by default ``Average``.
    """
    if average is True:
        average = None  # the default, which op may replace
    return _keras.allreduce(
        keras.backend, value, name, average, prescale_factor, postscale_factor, op, compression
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the lists or arrays of all ranks, whose length may differ; returns a tensor."""
    return _keras.allgather(keras.backend, value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The number, list or array of ``root_rank`` on every rank, as a tensor."""
    return _keras.broadcast(keras.backend, value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce a list or array over all ranks and return this rank's share of its rows, as a tensor."""
    return _keras.reducescatter(keras.backend, value, name, op)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
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
        return DistributedOptimizer(optimizer, compression=compression)

    return _keras.load_model(keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)
