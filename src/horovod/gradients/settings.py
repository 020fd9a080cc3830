"""Settings for the reduction of an optimizer's or a tape's gradients: one record, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from horovod.collectives.ops import Adasum, Average, checked_op
from horovod.errors import InvalidArgumentError, deprecated
from horovod.gradients.compression import NoneCompressor, checked_compressor
from horovod.gradients.groups import Groups, checked_groups
from horovod.runtime.process_set import ProcessSet, checked_set, global_process_set

__all__ = ["GradientSettings", "chosen_groups"]


@dataclass(frozen=True, kw_only=True)
class GradientSettings:
    """The fields have the names of the parameters that public functions share; see :meth:`of`.

    Attributes:
        name: the start of the names that ranks find each other's operations by; ``None``: made from the name
            of what is wrapped.
        device_dense, device_sparse: where TensorFlow reduces dense gradients and ``IndexedSlices``.
        compression: around the reduction of dense gradients, see ``horovod.gradients.compression``.
        sparse_as_dense: reduce sparse gradients as dense ones.
        op: how the gradients of the ranks combine.
        gradient_predivide_factor: with ``Average``, the part of the division that comes before the sum.
        backward_passes_per_step: passes whose gradients are summed locally before one reduction.
        average_aggregated_gradients: divide what is reduced by ``backward_passes_per_step``.
        groups: which gradients travel together.
        process_set: ranks that take part.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Raises:
        ValueError: no reduction; no compressor; a predivide factor that is no number or zero, or with
            another reduction than ``Average``; averages of passes with ``Adasum``; no positive whole number
            of passes; wrong groups.
        TypeError: no process set.
    """

    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = NoneCompressor
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", checked_op(self.op))
        if not callable(getattr(self.compression, "for_tensor", None)):  # else that makes the compressors
            checked_compressor(self.compression)
        checked_set(self.process_set)
        if not math.isfinite(_number(self.gradient_predivide_factor)) or self.gradient_predivide_factor == 0:
            raise InvalidArgumentError(
                "gradient_predivide_factor must be a number other than 0, not "
                f"{self.gradient_predivide_factor!r}."
            )
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise InvalidArgumentError(
                f"gradient_predivide_factor={self.gradient_predivide_factor} needs op=Average: it splits the "
                "division by the number of ranks in two, and other reductions do not divide."
            )
        if self.op == Adasum and self.average_aggregated_gradients:
            raise InvalidArgumentError("Adasum does not support average_aggregated_gradients=True.")
        passes = _number(self.backward_passes_per_step)
        if not (passes > 0 and passes.is_integer()):
            raise InvalidArgumentError(
                "backward_passes_per_step must be a positive whole number, not "
                f"{self.backward_passes_per_step!r}."
            )
        object.__setattr__(self, "backward_passes_per_step", int(passes))
        object.__setattr__(self, "groups", checked_groups(self.groups))

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **instead: Any) -> GradientSettings:
        """The settings among the arguments of a public function.

        Such functions have explicit signatures, for ``help()`` and editors; what they do with a dozen
        arguments is always the same.

        Args:
            arguments: ``locals()`` at the beginning of the function. ``num_groups``, the deprecated form of
                ``groups``, may be among them.
            instead: fields that differ from the arguments.

        Raises:
            ValueError: see the class.
        """
        given = {each.name: arguments[each.name] for each in fields(cls) if each.name in arguments} | instead
        groups = given.pop("groups", None)
        settings = cls(**given)  # the groups are the last to be looked at
        if "groups" not in instead:
            groups = chosen_groups(arguments.get("num_groups", 0), groups)
        return replace(settings, groups=groups)

    @property
    def scales(self) -> tuple[float, float]:
        """Factors before and after the reduction; the division by the number of ranks comes on top."""
        factor = self.gradient_predivide_factor
        return 1.0 / factor, factor


def _number(given: Any) -> float:
    """``given`` as a number; NaN if it is none."""
    try:
        return float(given) if hasattr(given, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def chosen_groups(num_groups: int, groups: Any) -> Any:
    """Combine ``groups`` with ``num_groups``, its deprecated form."""
    if num_groups == 0:
        return groups
    deprecated("Parameter `num_groups` has been replaced by `groups` and will be removed.")
    return num_groups if groups is None else groups
