"""The functions of ``horovod.keras`` and ``horovod.tensorflow.keras``, for the Keras that each is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horovod import _keras
from horovod._keras.frameworks import framework
from horovod.collectives.forms import Average
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.groups import Groups, chosen_groups, local_weights
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = ["Interface"]


class Interface:
    """What depends on Keras or its framework, and has one signature in both modules.

    Args:
        keras: the module.
    """

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        self._framework = framework(keras.backend.backend())
        self.Compression = self._framework.Compression

    def init(self, *args: Any, **kwargs: Any) -> None:
        """See ``HorovodBasics.init``."""
        self._framework.init(*args, **kwargs)

    def shutdown(self) -> None:
        """See ``HorovodBasics.shutdown``."""
        self._framework.shutdown()

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
        made = _keras.create_distributed_optimizer(
            self._keras,
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
        return _keras.allreduce(
            self._keras.backend, value, name, average, prescale_factor, postscale_factor, op, compression
        )

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Make the global variables of a v1 graph those of ``root_rank``.

        Raises:
            RuntimeError: there is no graph; Keras 3 never has one: use ``broadcast_variables``.
        """
        return _keras.broadcast_global_variables(self._keras.backend, root_rank)

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """Concatenate the lists or arrays of all ranks, whose length may differ; returns a tensor."""
        return _keras.allgather(self._keras.backend, value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """The number, list or array of ``root_rank`` on every rank, as a tensor."""
        return _keras.broadcast(self._keras.backend, value, root_rank, name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduce a list or array over all ranks and return this rank's share of its rows, as a tensor."""
        return _keras.reducescatter(self._keras.backend, value, name, op)

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
