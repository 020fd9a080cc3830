"""Which gradients are reduced, and which of them together: what all optimizers and tapes decide alike that
get the gradients of a step at once, as lists beside their variables.

Nothing here knows a framework: gradients are only ever looked at through functions that the caller gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from horovod.collectives.forms import Adasum, Average
from horovod.errors import InvalidArgumentError
from horovod.gradients.exchange import check_groups, split_list
from horovod.runtime.process_set import ProcessSet, member_count

__all__ = [
    "Groups",
    "PartialReduction",
    "VariableSet",
    "check_passes",
    "check_predivide",
    "chosen_groups",
    "local_weights",
    "own_variable",
    "plan_groups",
    "scaling",
    "stays_local",
]

G = TypeVar("G")

Groups: TypeAlias = int | list[list[Any]] | None
"""A number of groups to cut the gradients of a step into, or lists of variables; ``None``: as few operations
as there are dtypes."""


# -- arguments ----------------------------------------------------------------------------------------------


def check_predivide(op: int, factor: float) -> None:
    """
    Raises:
        ValueError: a predivide factor with another reduction than ``Average``.
    """
    if factor != 1.0 and op != Average:
        raise InvalidArgumentError(
            f"gradient_predivide_factor={factor} needs op=Average: it splits the division by the number of "
            "ranks in two, and other reductions do not divide."
        )


def check_passes(backward_passes_per_step: int, op: int, average_aggregated_gradients: bool) -> None:
    """
    Raises:
        ValueError: no positive number of passes; or averaging over them with Adasum.
    """
    if op == Adasum and average_aggregated_gradients:
        raise InvalidArgumentError("Adasum does not support average_aggregated_gradients=True.")
    if backward_passes_per_step <= 0:
        raise InvalidArgumentError(
            f"backward_passes_per_step must be a positive number, not {backward_passes_per_step}."
        )


def chosen_groups(num_groups: int, groups: Any, *, stacklevel: int = 3) -> Groups:
    """Combine ``groups`` with ``num_groups``, its deprecated form.

    Raises:
        ValueError: neither a list of lists nor a positive number.
    """
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed.",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
        if groups is None:
            groups = num_groups
    if groups is None:
        return None
    if isinstance(groups, list | tuple):
        if not all(isinstance(group, list | tuple) for group in groups):
            raise InvalidArgumentError("groups must be a number or a list of lists of variables.")
        lists = [[own_variable(variable) for variable in group] for group in groups]
        numbers: dict[int, int] = {}
        check_groups([[numbers.setdefault(id(each), len(numbers)) for each in group] for group in lists])
        return lists
    if not isinstance(groups, int) or groups <= 0:
        raise InvalidArgumentError(
            f"groups must be a positive number or a list of lists of variables, not {groups!r}."
        )
    return groups


def scaling(op: int, factor: float) -> tuple[float, float]:
    """Factors before and after the reduction; the division by the number of ranks comes on top."""
    return (1.0 / factor, factor) if op == Average else (1.0, 1.0)


def stays_local(process_set: ProcessSet) -> bool:
    """Whether this process keeps its own gradients: it is not in the set, or alone in it.

    Raises:
        ValueError: ``init()`` has not been called.
        TypeError: the set is not registered.
    """
    return member_count(process_set) == 1 or not process_set.included()


# -- variables ----------------------------------------------------------------------------------------------


def own_variable(variable: Any) -> Any:
    """The framework's variable inside of a Keras one, which is the same object wherever it comes from;
    otherwise ``variable`` itself.

    A Keras variable on JAX is returned as it is: what it holds is another array after each assignment.
    """
    inner = getattr(variable, "_value", None)
    if inner is not None and (hasattr(inner, "assign") or hasattr(inner, "requires_grad")):
        return inner
    return variable


def local_weights(local_layers: Any) -> list[Any]:
    """The trainable weights of one Keras layer or of a collection of layers; ``None`` has none.

    Raises:
        ValueError: neither.
    """
    if local_layers is None:
        return []
    several = isinstance(local_layers, list | tuple | set | frozenset)
    layers = list(local_layers) if several else [local_layers]
    weights: list[Any] = []
    for layer in layers:
        # Of either generation of Keras.
        if not (hasattr(layer, "trainable_weights") and callable(getattr(layer, "call", None))):
            raise InvalidArgumentError(
                f"local_layers must be a Keras layer or a collection of layers, got {layer!r}."
            )
        weights += layer.trainable_weights
    return weights


class VariableSet:
    """Variables by identity: some kinds compare element by element, and names need not be unique."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        self._kept: dict[int, Any] = {}  # with the object, whose number could be given away otherwise
        for variable in variables:
            self.add(variable)

    def add(self, variable: Any) -> None:
        own = own_variable(variable)
        self._kept[id(own)] = own

    def __contains__(self, variable: object) -> bool:
        return id(own_variable(variable)) in self._kept

    def __len__(self) -> int:
        return len(self._kept)


# -- groups -------------------------------------------------------------------------------------------------


def plan_groups(
    kinds: Sequence[Hashable], variables: Sequence[Any] | None = None, groups: Groups = None
) -> list[list[int]]:
    """Which gradients travel as one operation, as positions; every position once.

    Args:
        kinds: of each gradient, what must be equal within one operation (the dtype, and whether it is
            sparse).
        variables: of the gradients; needed if ``groups`` are lists.
        groups: as :func:`chosen_groups` returned them. Of a number larger than that of the gradients only so
            many groups are made; variables that are in no list travel alone.
    """
    positions = range(len(kinds))
    if not kinds:
        return []
    if groups is None:
        planned = [list(positions)]
    elif isinstance(groups, int):
        planned = split_list(positions, min(groups, len(kinds)))
    else:
        assert variables is not None, "groups of variables need the variables"
        number = {id(own_variable(each)): n for n, group in enumerate(groups) for each in group}
        members: dict[int, list[int]] = {}
        for position in positions:
            # Those in no list get numbers that no list has.
            key = number.get(id(own_variable(variables[position])), len(groups) + position)
            members.setdefault(key, []).append(position)
        planned = list(members.values())
    alike: list[list[int]] = []
    for group in planned:
        by_kind: dict[Hashable, list[int]] = {}
        for position in group:
            by_kind.setdefault(kinds[position], []).append(position)
        alike += by_kind.values()
    return alike


# -- local variables ----------------------------------------------------------------------------------------


class PartialReduction:
    """Reduces the gradients of a step, except for those of the variables that were registered as local.

    Args:
        reduce: takes gradients (``None`` where there is none) and their variables, and returns the reduced
            gradients.
        scale: takes a local gradient and returns it divided by the number of ranks, the scale of an average
            over the ranks; ``None``: local gradients stay as they are.

    Attributes:
        local: the variables that were registered.
    """

    def __init__(
        self,
        reduce: Callable[..., Sequence[Any]],
        scale: Callable[[Any], Any] | None,
    ) -> None:
        self._reduce = reduce
        self._scale = scale
        self.local = VariableSet()

    def register(self, variable: Any) -> None:
        """From now on the gradient of ``variable`` is not reduced."""
        self.local.add(variable)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], **options: Any) -> list[Any]:
        """The gradients to use, in the order of ``variables``; ``options`` are for ``reduce``."""
        if not self.local:
            return list(self._reduce(list(gradients), list(variables), **options))
        result = list(gradients)
        common = []
        for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if variable not in self.local:
                common.append(position)
            elif gradient is not None and self._scale is not None:
                result[position] = self._scale(gradient)
        if common:
            reduced = self._reduce(
                [gradients[position] for position in common],
                [variables[position] for position in common],
                **options,
            )
            for position, gradient in zip(common, reduced, strict=True):
                result[position] = gradient
        return result
