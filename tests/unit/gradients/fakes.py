"""Variables of nobody's framework."""

from __future__ import annotations


class Inner:
    """A framework's variable: it can be assigned to, and comparing it is no yes or no."""

    def assign(self, value: object) -> None: ...

    def __eq__(self, other: object) -> bool:
        raise TypeError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


class KerasLike:
    name = "kernel"

    def __init__(self, value: object) -> None:
        self._value = value
