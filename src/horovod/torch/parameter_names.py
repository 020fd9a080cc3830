"""Names of the parameters of an optimizer. Ranks recognise each other's gradients by these names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from horovod.errors import InvalidArgumentError

__all__ = ["ParameterNames", "find_duplicates"]


class ParameterNames:
    """A name for every parameter of an optimizer, given by the user or made from positions.

    Attributes:
        by_parameter: names as users see them. There may be more than the optimizer has parameters: some may
            be added to it later.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
    ) -> None:
        """
        Raises:
            ValueError: not pairs; a name occurs twice; a parameter of ``optimizer`` has none.
        """
        self.given = named_parameters is not None
        self.by_parameter: dict[torch.Tensor, str] = {}
        # A second optimizer without names has the same positions; the shapes tell the two apart.
        self._marks: dict[torch.Tensor, str] = {}
        if named_parameters is not None:
            self.by_parameter = _checked(named_parameters)
        for number, group in enumerate(optimizer.param_groups):
            self.add_group(number, group["params"])

    def add_group(self, number: int, parameters: list[torch.Tensor]) -> None:
        """Name the parameters of group ``number``.

        Raises:
            ValueError: the names were given by the user, and one of these has none.
        """
        if self.given:
            missing = sum(parameter not in self.by_parameter for parameter in parameters)
            if missing:
                raise InvalidArgumentError(
                    f"named_parameters was specified, but {missing} parameters of the optimizer were not "
                    "named. Every parameter needs a name that is the same on all ranks, also one that is "
                    "added later with add_param_group(): pass model.named_parameters() of the whole model."
                )
            return
        shapes = repr([(tuple(p.shape), p.dtype) for p in parameters])
        mark = hashlib.blake2s(shapes.encode(), digest_size=4).hexdigest()
        for position, parameter in enumerate(parameters):
            self.by_parameter[parameter] = f"allreduce.noname.{number}.{position}"
            self._marks[parameter] = mark

    def add(self, number: int, position: int, parameter: torch.Tensor) -> None:
        """Name one that was put there without ``add_param_group``, if the user has not."""
        if parameter in self.by_parameter:
            return
        taken = set(self.by_parameter.values())
        name = f"allreduce.noname.{number}.{position}"
        again = 0
        while name in taken:
            again += 1
            name = f"allreduce.noname.{number}.{position}.{again}"
        self.by_parameter[parameter] = name

    def replace(self, old: torch.Tensor, parameter: torch.Tensor) -> None:
        """Let ``parameter`` have the name of ``old``, which has none afterwards."""
        if parameter not in self.by_parameter:
            self.by_parameter[parameter] = self.by_parameter[old]
        del self.by_parameter[old]
        if (mark := self._marks.pop(old, None)) is not None:
            self._marks[parameter] = mark

    def of_exchange(self, parameter: torch.Tensor) -> str:
        """The name of the operation that exchanges the gradient of ``parameter``."""
        name = self.by_parameter[parameter]
        mark = self._marks.get(parameter)
        return name if mark is None else f"{name}.{mark}"


def find_duplicates(elements: Iterable[Any]) -> set[Any]:
    """The elements that occur more than once."""
    seen: set[Any] = set()
    return {element for element in elements if element in seen or seen.add(element)}  # type: ignore[func-returns-value]


def _checked(named_parameters: Any) -> dict[torch.Tensor, str]:
    pairs = list(named_parameters) if isinstance(named_parameters, Iterable) else [named_parameters]
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = find_duplicates(name for name, _ in pairs)
    if duplicates:
        raise InvalidArgumentError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(sorted(duplicates))
        )
    return {parameter: name for name, parameter in pairs}
