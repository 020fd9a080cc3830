"""What the shared Keras code needs from the framework that Keras computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.gradients.groups import Groups, PartialReduction
from horovod.runtime.process_set import ProcessSet, member_count

__all__ = ["Framework", "Settings", "share_of_average"]


@dataclass(frozen=True)
class Settings:
    """How the gradients of one optimizer are reduced.

    Attributes:
        name: the start of the names that ranks find each other's operations by.
        device_dense, device_sparse: where TensorFlow reduces dense gradients and ``IndexedSlices``.
        compression: around the reduction of dense gradients, see ``horovod.gradients.compression``.
        sparse_as_dense: reduce sparse gradients as dense ones.
        op: ``Average`` or ``Sum``.
        predivide: with ``Average``, the part of the division that comes before the sum.
        passes: backward passes whose gradients are summed locally before one reduction.
        average_passes: divide what is reduced by ``passes``.
        groups: which gradients travel together.
        process_set: ranks that take part.
        scale_local: divide gradients of local variables by the number of ranks.
    """

    name: str
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    op: int
    predivide: float
    passes: int
    average_passes: bool
    groups: Groups
    process_set: ProcessSet
    scale_local: bool


class Framework(Protocol):
    """One framework under Keras. Tensors and variables are its own, or of Keras around them.

    What has a body here suits a framework without sparse gradients and sessions, in which compiled steps can
    have collectives; others override it.
    """

    Compression: Any
    """The compressors to choose from."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Form the world, see ``HorovodBasics.init``."""

    def shutdown(self) -> None:
        """Leave the world."""

    # -- gradients ------------------------------------------------------------------------------------------

    def reduction(self, settings: Settings) -> PartialReduction:
        """What reduces gradients (none of them ``None``) of variables over the ranks; it may change them in
        place."""

    def legacy_optimizer(self, optimizer: Any, settings: Settings) -> Any:
        """A distributed optimizer like ``optimizer``, which is one of Keras 2, with its state.

        Raises:
            ValueError: Keras 2 cannot compute with this framework.
        """
        raise InvalidArgumentError(f"Expected an optimizer of Keras 3, got {optimizer!r}.")

    def scaled(self, gradient: Any, factor: float) -> Any:
        """``gradient * factor``, in the dtype of ``gradient``."""

    def is_reduced(self, gradient: Any) -> bool:
        """Whether something else has reduced ``gradient`` already."""
        return False

    def dense(self, gradient: Any) -> Any | None:
        """``gradient`` as a dense tensor if it is a sparse one, ``None`` if it is dense."""
        return None

    def refuse_compiled(self) -> None:
        """
        Raises:
            HorovodInternalError: in a computation that is being compiled in a way that no collective can be
                part of.
        """
        return

    def keep_uncompiled(self, model: Any) -> bool:
        """Make sure that the training step of ``model`` can have collectives. Whether that changed it."""
        return False

    def choose(
        self,
        condition: Any,
        if_true: Callable[[], None],
        if_false: Callable[[], None],
        variables: Sequence[Any],
    ) -> None:
        """Call one of two functions by a boolean scalar; in a step that is traced, part of it.

        Args:
            variables: all that the two functions may assign to.
        """

    def moments(self, own: Any) -> Any:
        """Mean and variance of the values of all ranks, differentiable once.

        Args:
            own: shape ``(3, channels)``, float32 or wider: count, mean and sum of squared deviations from it
                on this rank, see ``horovod._keras.moments``.

        Returns:
            Mean and biased variance, shape ``(2, channels)``, dtype of ``own``.
        """

    # -- other ----------------------------------------------------------------------------------------------

    def own_failure(self, error: BaseException) -> HorovodInternalError | None:
        """What of us failed, if ``error`` is how the framework reports that."""

    def computed(self, value: Any) -> Any:
        """``value``, or in a v1 graph what it is when the session of Keras runs."""
        return value

    def in_session(self) -> bool:
        """Whether operations become part of a v1 graph, which a session runs."""
        return False

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Make the global variables of a v1 graph those of ``root_rank``.

        Raises:
            RuntimeError: there is no graph; Keras 3 never has one.
        """
        raise RuntimeError(
            "broadcast_global_variables() needs a v1 graph, whose variables are listed in a collection. Use "
            "broadcast_variables(model.weights + optimizer.variables, root_rank), or the callback "
            "BroadcastGlobalVariablesCallback."
        )

    # -- values ---------------------------------------------------------------------------------------------

    def allreduce(
        self, value: Any, name: str | None, op: int, prescale: float, postscale: float, compression: Any
    ) -> Any: ...

    def allgather(self, value: Any, name: str | None) -> Any: ...

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any: ...

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any: ...


def share_of_average(framework: Framework, settings: Settings) -> Callable[[Any], Any] | None:
    """What divides the gradient of a local variable by the number of ranks, if the settings want that."""
    if not settings.scale_local:
        return None
    return lambda gradient: framework.scaled(gradient, 1.0 / member_count(settings.process_set))
