"""Code shared by ``horovod.keras`` and ``horovod.tensorflow.keras``: optimizers, callbacks, elastic state.

Both ask Keras which framework it computes with, and call the collectives of that framework. The first
argument of every function is the module to work with, ``keras`` or ``keras.backend``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod._keras.frameworks import framework
from horovod.collectives.ops import Average, Sum, checked_op, reduce_op
from horovod.errors import InvalidArgumentError
from horovod.gradients.groups import Groups
from horovod.gradients.settings import GradientSettings
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "collective",
    "create_distributed_optimizer",
    "distributed",
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
    """See ``horovod.keras.DistributedOptimizer``."""
    return distributed(keras, locals())


def distributed(keras: Any, arguments: Mapping[str, Any]) -> Any:
    """Make a distributed optimizer, see ``horovod.keras.DistributedOptimizer``.

    Args:
        arguments: the ``locals()`` of the public function.
    """
    optimizer, op = arguments["optimizer"], checked_op(arguments["op"])
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op currently only supports Average and Sum, not {op}.")
    settings = GradientSettings.of(
        arguments,
        name=arguments["name"] or f"Distributed{type(optimizer).__name__}",
        # A sum ignores it; it is no error here.
        gradient_predivide_factor=arguments["gradient_predivide_factor"] if op == Average else 1.0,
    )
    if isinstance(optimizer, type):
        raise InvalidArgumentError(_no_optimizer(optimizer))
    work = framework(keras.backend.backend())
    if hasattr(optimizer, "stateless_apply"):  # Keras 3
        from horovod._keras import optimizer as keras3

        return keras3.distributed(optimizer, work, settings)
    if hasattr(optimizer, "apply_gradients"):
        return work.legacy_optimizer(optimizer, settings)
    raise InvalidArgumentError(_no_optimizer(optimizer))


def _no_optimizer(given: Any) -> str:
    """Message for something else that was given in place of an optimizer."""
    if hasattr(given, "trainable_weights"):
        wanted = "wrap the optimizer, not the model"
    else:
        wanted = "it wraps an optimizer of Keras"
    what = repr(given) if isinstance(given, str | type) else f"a {type(given).__name__}"
    return (
        f"DistributedOptimizer got {what}: {wanted}. Write optimizer = "
        "hvd.DistributedOptimizer(keras.optimizers.Adam(0.001)) and model.compile(optimizer=optimizer, ...)"
    )


# -- values -------------------------------------------------------------------------------------------------


def broadcast_global_variables(backend: Any, root_rank: int) -> Any:
    """Make the global variables of a v1 graph those of ``root_rank``.

    Raises:
        RuntimeError: there is no graph; Keras 3 never has one.
    """
    return framework(backend.backend()).broadcast_global_variables(root_rank)


def collective(kind: str, backend: Any, value: Any, name: str | None, **how: Any) -> Any:
    """Run the collective ``kind`` on a number, list or array; returns a tensor, in a v1 graph an array.

    Args:
        how: further arguments of the framework's function of that name.
    """
    work = framework(backend.backend())
    return work.computed(getattr(work.collectives, kind)(work.tensor(value, name), name=name, **how))


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
    return collective(
        "allreduce",
        backend,
        value,
        name,
        op=reduce_op(op, average),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )


def allgather(backend: Any, value: Any, name: str | None) -> Any:
    return collective("allgather", backend, value, name)


def broadcast(backend: Any, value: Any, root_rank: int, name: str | None) -> Any:
    return collective("broadcast", backend, value, name, root_rank=root_rank)


def reducescatter(backend: Any, value: Any, name: str | None, op: int) -> Any:
    return collective("reducescatter", backend, value, name, op=op)


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

    # Files name optimizers of Keras by their class or in small letters.
    factories = {name: wrapping(kind) for name, kind in known.items()}
    model = keras.models.load_model(filepath, custom_objects={**factories, **given})
    return _wrapped(model, wrap_optimizer)


def _load_model(
    keras: Any, wrap_optimizer: Callable[[Any], Any], filepath: Any, custom_optimizers: Any, given: Any
) -> Any:
    # Keras looks for its own optimizers in itself alone, and refuses functions in place of classes.
    classes = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**classes, **given})
    return _wrapped(model, wrap_optimizer)


def _wrapped(model: Any, wrap_optimizer: Callable[[Any], Any]) -> Any:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and getattr(optimizer, "_horovod_settings", None) is None:
        model.optimizer = wrap_optimizer(optimizer)
        model.train_function = None  # was made with the plain optimizer
    return model
