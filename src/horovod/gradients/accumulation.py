"""Sums of gradients over several backward passes, which are reduced once, in the last pass of a cycle.

PyTorch adds up in ``parameter.grad`` by itself; there :mod:`horovod.gradients.exchange` only counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from horovod.errors import InvalidArgumentError
from horovod.gradients.settings import GradientSettings

__all__ = ["Accumulator"]


class Accumulator(ABC):
    """Sums the gradients of ``backward_passes_per_step`` passes, reduces the sums, and lets the optimizer
    update then.

    A framework says where the sums live, and how something is decided by values that may be known only when
    a graph runs. A pass reads the counter before it computes anything and changes it before the gradients it
    returns are ready, so whatever uses these sees the new value.

    Args:
        settings: of the optimizer.
        reduce: takes gradients (``None`` where there is none) and their variables as two lists, returns the
            reduced gradients.

    Attributes:
        counter: int32 variable; passes of the current cycle so far, 0 after its last one. ``None`` until
            there is something to sum.
    """

    returns_sums: ClassVar[bool] = True
    """True if passes in between give the sums so far, not only their own gradients."""

    traces_share_sums: ClassVar[bool] = True
    """True if graphs that were built one after another add to the same sums."""

    def __init__(self, settings: GradientSettings, reduce: Callable[..., Sequence[Any]]) -> None:
        self._traced: frozenset[int] = frozenset()  # ids of the sums that a graph knows
        self._passes = settings.backward_passes_per_step
        self._averages = settings.average_aggregated_gradients
        self._sparse_as_dense = settings.sparse_as_dense
        self._reduce = reduce
        self.counter: Any = None

    # -- what a framework does ------------------------------------------------------------------------------

    @abstractmethod
    def sums_of(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The variable that holds the sum of each gradient, made when it is first needed, as the counter is;
        ``None`` for a variable that never had a gradient."""

    @abstractmethod
    def dense(self, gradient: Any) -> Any | None:
        """``gradient`` as a dense tensor if it is a sparse one, ``None`` if it is dense."""

    @abstractmethod
    def fitted(self, gradient: Any | None, total: Any) -> Any:
        """``gradient`` in the dtype of the variable ``total``; zeros like it if there is none."""

    @abstractmethod
    def read(self, variable: Any) -> Any:
        """Return the present value of ``variable``."""

    @abstractmethod
    def write(self, variable: Any, value: Any) -> Any:
        """Assign; returns what :meth:`after` takes."""

    def after(self, done: Sequence[Any]) -> AbstractContextManager[Any]:
        """Compute the block after what :meth:`write` returned, and after the tensors in ``done``."""
        return nullcontext()

    @abstractmethod
    def runs_at_once(self) -> bool:
        """Return whether passes run as they are written. A graph is built once for many passes, and has the
        set of gradients built in.
        """

    @abstractmethod
    def choose(self, condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        """The result of one of two functions. Both return lists of tensors of the same shapes, or nothing;
        where passes run at once, ``None`` for some."""

    # -- passes ---------------------------------------------------------------------------------------------

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add ``grads``, one for each of ``vars`` or ``None``, to the sums.

        Returns:
            In the last pass of a cycle the reduced sums, otherwise see ``returns_sums``. ``None`` for a
            variable that never had a gradient; one that has none in this pass only keeps its sum.

        Raises:
            ValueError: a sparse gradient without ``sparse_as_dense``; or this is built into a graph, and an
                earlier graph knows fewer sums: it would neither reduce nor begin anew the others.
        """
        result = [self._densified(gradient) for gradient in grads]
        sums = self.sums_of(result, vars)
        if self.counter is None:
            return result
        known = [position for position, total in enumerate(sums) if total is not None]
        kept = [sums[position] for position in known]
        if self.traces_share_sums and not self.runs_at_once():
            self._check_traced(kept, [vars[position] for position in known])
        given = [self.fitted(result[position], sums[position]) for position in known]
        before = self.read(self.counter)

        def added() -> list[Any]:
            return [self.read(total) + gradient for total, gradient in zip(kept, given, strict=True)]

        # The first pass replaces the old sums. A product with 0 would keep infinities.
        totals = self.choose(before < 1, lambda: given, added) if known else []
        written = [self.write(total, value) for total, value in zip(kept, totals, strict=True)]
        with self.after([before, *written]):
            counted = self.write(self.counter, (before + 1) % self._passes)
        with self.after([counted]):
            after = self.read(self.counter)

        # Another rank may have a gradient for a variable that never had one here.
        given_out = list(range(len(vars))) if self.runs_at_once() else known

        def of_all(values: Sequence[Any]) -> list[Any]:
            everything: list[Any] = [None] * len(vars)  # ranks that lack different ones are told apart
            for position, value in zip(known, values, strict=True):
                everything[position] = value
            return everything

        def finish() -> list[Any]:
            everything = list(self._reduce(of_all(totals), list(vars)))
            reduced = [everything[position] for position in given_out]
            if not self._averages:
                return reduced
            return [None if gradient is None else gradient / self._passes for gradient in reduced]

        def go_on() -> list[Any]:
            everything = of_all(totals if self.returns_sums else given)
            return [everything[position] for position in given_out]

        if given_out:
            outcome = self.choose(after < 1, finish, go_on)
            for position, gradient in zip(given_out, outcome, strict=True):
                result[position] = gradient
        return result

    def complete(self, gradients: Sequence[Any]) -> Any:
        """Return whether this is the last pass of a cycle, so that there is something to apply: a boolean
        scalar.

        Args:
            gradients: what :meth:`compute_gradients` returned.
        """
        with self.after([gradient for gradient in gradients if gradient is not None]):
            return self.read(self.counter) < 1

    def _check_traced(self, sums: Sequence[Any], variables: Sequence[Any]) -> None:
        before, self._traced = self._traced, self._traced.union(map(id, sums))
        new = [each for total, each in zip(sums, variables, strict=True) if id(total) not in before]
        if before and new:
            names = ", ".join(
                str(getattr(each, "path", None) or getattr(each, "name", each)) for each in new[:4]
            )
            raise InvalidArgumentError(
                f"With backward_passes_per_step > 1, {names}{' ...' if len(new) > 4 else ''} has a gradient "
                "in this graph and had none in the one that was built before, which would keep its sum and "
                "never reduce it. Compute gradients of all variables in every pass (zeros where it does not "
                "use one: unconnected_gradients=tf.UnconnectedGradients.ZERO), or run eagerly."
            )

    def _densified(self, gradient: Any) -> Any:
        dense = None if gradient is None else self.dense(gradient)
        if dense is None:
            return gradient
        if not self._sparse_as_dense:
            raise InvalidArgumentError(
                "Sparse gradients cannot be summed with backward_passes_per_step > 1: pass "
                "sparse_as_dense=True."
            )
        return dense
