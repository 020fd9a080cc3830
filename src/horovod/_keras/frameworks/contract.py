"""Contract between the shared Keras code and the framework that Keras computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from horovod.errors import HorovodError, InvalidArgumentError
from horovod.gradients.reduction import PartialReduction
from horovod.gradients.settings import GradientSettings

__all__ = ["Branch", "Framework"]

Branch: TypeAlias = Callable[[], Any]
"""Returns a list of tensors, or nothing."""


class Framework(Protocol):
    """One framework under Keras. Tensors and variables are its own, or of Keras around them.

    What has a body here suits a framework without sparse gradients and sessions, in which compiled steps can
    have collectives; others override it.
    """

    Compression: Any
    """The compressors to choose from."""

    # -- gradients ------------------------------------------------------------------------------------------

    def reduction(self, settings: GradientSettings) -> PartialReduction:
        """An object that reduces gradients over the ranks. It may change them in place.

        In a step that runs at once, a gradient that some rank has is exchanged, and ranks where it is
        ``None`` bring zeros; one that no rank has stays ``None``."""

    def legacy_optimizer(self, optimizer: Any, settings: GradientSettings) -> Any:
        """A distributed optimizer like ``optimizer``, which is one of Keras 2, with its state.

        Raises:
            ValueError: Keras 2 cannot compute with this framework.
        """
        raise InvalidArgumentError(f"Expected an optimizer of Keras 3, got {optimizer!r}.")

    def gradients(self, loss: Any, variables: Sequence[Any], grad_loss: Any, tape: Any) -> list[Any]:
        """The gradients of this rank, see ``_compute_gradients`` of the distributed optimizer.

        Raises:
            ValueError: the framework has no optimizers that compute gradients.
        """
        raise InvalidArgumentError(
            "Optimizers compute gradients with TensorFlow only. Compute them with the framework, and pass "
            "them to optimizer.apply(), which reduces them."
        )

    def note_reduced(self, gradients: Sequence[Any]) -> None:
        """From now on :meth:`is_reduced` says yes to each of ``gradients``."""
        return

    def is_reduced(self, gradient: Any) -> bool:
        """Return whether something else has reduced ``gradient`` already."""
        return False

    def dense(self, gradient: Any) -> Any | None:
        """``gradient`` as a dense tensor if it is a sparse one, ``None`` if it is dense."""
        return None

    def refuse_compiled(self) -> None:
        """Raise an error where the exchange that follows could not run.

        Raises:
            HorovodInternalError: in a computation that is being compiled in a way that no collective can be
                part of.
        """
        return

    def keep_uncompiled(self, model: Any) -> bool:
        """Make sure that the training step of ``model`` can have collectives. Returns whether it was
        changed."""
        return False

    def runs_at_once(self, value: Any) -> bool:
        """Return whether this step runs as written. If ``value``, of a variable, is being traced, so is the
        step.
        """
        return True

    def choose(self, condition: Any, if_true: Branch, if_false: Branch, variables: Sequence[Any]) -> Any:
        """Call one of two functions, by a boolean scalar, and return its result. In a step that is traced,
        both become part of the step.

        Args:
            if_true, if_false: return tensors of the same shapes.
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

    def own_failure(self, error: BaseException) -> HorovodError | None:
        """Our failure, if ``error`` is the framework's report of one; else ``None``."""

    def computed(self, value: Any) -> Any:
        """``value``; in a v1 graph its result in the session of Keras."""
        return value

    def in_session(self) -> bool:
        """Return whether operations become part of a v1 graph, which a session runs."""
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

    collectives: Any
    """A module or object with the framework's collectives. They take the arguments that those of
    ``horovod.torch`` and ``horovod.tensorflow`` have in common."""

    def tensor(self, value: Any, name: str | None) -> Any:
        """``value``, a number, list or array, as a tensor for the collectives; in a graph named after
        ``name``."""
