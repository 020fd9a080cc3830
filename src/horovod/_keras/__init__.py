"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` share: both ask Keras what it computes with, and
hand over to the collectives of that framework.

Functions take the module ``keras`` or ``keras.backend`` they are to work with as their first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod._keras.frameworks import Settings, framework
from horovod.collectives.forms import Average, Sum, reduce_op
from horovod.errors import InvalidArgumentError
from horovod.gradients.groups import Groups, check_passes
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "create_distributed_optimizer",
    "load_model",
    "reducescatter",
]


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
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
        groups: a number of groups, or lists of variables, whose gradients are reduced as one operation; by
            default one for each dtype. (``num_groups`` is deprecated.)
        process_set: ranks whose gradients are combined.
        scale_local_gradients: divide gradients of variables that are given to ``register_local_var`` by
            the number of ranks.

    Raises:
        ValueError: an argument is wrong, see each message.
    """
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op currently only supports Average and Sum, not {op}.")
    check_passes(backward_passes_per_step, op, average_aggregated_gradients)
    settings = Settings(
        name=name or f"Distributed{type(optimizer).__name__}",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local=scale_local_gradients,
    )
    work = framework(keras.backend.backend())
    if hasattr(optimizer, "stateless_apply"):  # Keras 3
        from horovod._keras.optimizer import distributed

        return distributed(optimizer, work, settings)
    if hasattr(optimizer, "apply_gradients"):
        return work.legacy_optimizer(optimizer, settings)
    raise InvalidArgumentError(f"Expected an optimizer of Keras, got {optimizer!r}.")


# -- values -------------------------------------------------------------------------------------------------


def broadcast_global_variables(backend: Any, root_rank: int) -> Any:
    """Make the global variables of a v1 graph those of ``root_rank``.

    Raises:
        RuntimeError: there is no graph; Keras 3 never has one.
    """
    return framework(backend.backend()).broadcast_global_variables(root_rank)


def allreduce(
    backend: Any,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    """Reduce a number, list or array over all ranks. Returns a tensor; in a v1 graph an array."""
    chosen = reduce_op(op, average, stacklevel=4)
    work = framework(backend.backend())
    return work.computed(work.allreduce(value, name, chosen, prescale_factor, postscale_factor, compression))


def allgather(backend: Any, value: Any, name: str | None) -> Any:
    """Concatenate the lists or arrays of all ranks."""
    work = framework(backend.backend())
    return work.computed(work.allgather(value, name))


def broadcast(backend: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The number, list or array of ``root_rank``, on every rank."""
    work = framework(backend.backend())
    return work.computed(work.broadcast(value, root_rank, name))


def reducescatter(backend: Any, value: Any, name: str | None, op: int) -> Any:
    """Reduce a list or array over all ranks and keep this rank's share of the rows."""
    work = framework(backend.backend())
    return work.computed(work.reducescatter(value, name, op))


# -- models -------------------------------------------------------------------------------------------------


def load_model(
    keras: Any,
    wrap_optimizer: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Any,
    custom_objects: Mapping[str, Any] | None,
    legacy_opts: bool = False,
) -> Any:
    """See ``horovod.keras.load_model``.

    Raises:
        ValueError: ``legacy_opts`` with Keras 3.
    """
    given = dict(custom_objects or {})
    if hasattr(keras, "ops"):  # Keras 3
        if legacy_opts:
            raise InvalidArgumentError(
                "legacy_opts=True needs the optimizers of Keras 2: install tf_keras and set "
                "TF_USE_LEGACY_KERAS=1."
            )
        return _load_model(keras, wrap_optimizer, filepath, custom_optimizers, given)
    optimizers = keras.optimizers
    base = optimizers.legacy.Optimizer if legacy_opts else optimizers.Optimizer
    known = {kind.__name__.lower(): kind for kind in base.__subclasses__()}
    known.update({kind.__name__: kind for kind in custom_optimizers or ()})

    def wrapping(kind: Any) -> Callable[..., Any]:
        return lambda **config: wrap_optimizer(kind(**config))

    # Files name optimizers of Keras by their class as well as in small letters.
    factories = {name: wrapping(kind) for name, kind in known.items()}
    model = keras.models.load_model(filepath, custom_objects={**factories, **given})
    return _wrapped(model, wrap_optimizer)


def _load_model(
    keras: Any, wrap_optimizer: Callable[[Any], Any], filepath: Any, custom_optimizers: Any, given: Any
) -> Any:
    # Keras looks for its own optimizers nowhere else, and refuses functions in the place of classes.
    classes = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**classes, **given})
    return _wrapped(model, wrap_optimizer)


def _wrapped(model: Any, wrap_optimizer: Callable[[Any], Any]) -> Any:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and getattr(optimizer, "_horovod_settings", None) is None:
        model.optimizer = wrap_optimizer(optimizer)
        model.train_function = None  # made with the other one
    return model
