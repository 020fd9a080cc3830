"""Records: what another process says, read field by field as a class annotates it.

    Size = Annotated[int, whole(1, 9)]

    class Arrival(NamedTuple):
        host: str
        size: Size
        ranks: tuple[int, ...] = ()

    record(Arrival)({"host": "a", "size": 2})     # Arrival(host="a", size=2, ranks=())
    record(Arrival)({"host": "a", "size": True})  # Malformed: size is no number from 1 to 9

A *reader* is a function that returns the value it is given, checked, or raises `Malformed`. An annotation may
be int, str, bool, float (seconds), a class with such fields, a name for ``Annotated`` and a reader, and of
these one ``| None`` or ``tuple[..., ...]``. A value that is nested deeper leads no reader further.

Agents carry this module to hosts with other Pythons, so it imports next to nothing and is Python 3.7.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes longer than the rest of an agent
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any, TypeAlias, TypeVar

    K = TypeVar("K")
    T = TypeVar("T")
    Reader: TypeAlias = Callable[[Any], T]

__all__ = [
    "Malformed",
    "cut",
    "fields",
    "listed",
    "mapped",
    "paired",
    "record",
    "seconds",
    "text",
    "truth",
    "whole",
]

_LARGEST = 1.7976931348623157e308
_WORD = (1 << 63) - 1


class Malformed(ValueError):
    """A value is not what its reader wants. ``path``: the fields that lead to it, the outermost first."""

    def __init__(self, what: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)} {what}" if path else what)
        self.what = what
        self.path = path


def _checked(fits: Callable[[Any], object], what: str) -> Reader[Any]:
    def read(value: Any) -> Any:
        if fits(value):
            return value
        raise Malformed(what)

    return read


truth: Reader[bool] = _checked(lambda value: type(value) is bool, "is neither true nor false")


def whole(least: int = -_WORD, most: int = _WORD) -> Reader[int]:
    """Read a whole number, both bounds included. A truth value is none."""
    what = f"is no number from {least} to {most}"
    return _checked(lambda value: type(value) is int and least <= value <= most, what)


def seconds(most: float = _LARGEST, *, least: float = 0.0, positive: bool = False) -> Reader[float]:
    """Read a finite number, whole or not, from ``least`` to ``most``; ``positive``: and above zero."""

    def fits(value: Any) -> bool:
        return type(value) in (int, float) and least <= value <= most and (value > 0 or not positive)

    read = _checked(fits, "is no number of seconds")
    return lambda value: float(read(value))


def text(
    most: int = _WORD, fits: Callable[[str], object] = lambda _: True, what: str = "is no text, or too long"
) -> Reader[str]:
    """Read a text of up to ``most`` characters that ``fits``; ``what`` is said of others."""
    return _checked(lambda value: isinstance(value, str) and len(value) <= most and fits(value), what)


def cut(most: int) -> Reader[str]:
    """Read a text and keep its first ``most`` characters."""
    return lambda value: text()(value)[:most]


def listed(reader: Reader[T], most: int = _WORD, *, least: int = 0) -> Reader[tuple[T, ...]]:
    """Read a list of ``least`` to ``most`` values."""
    what = "is no list, or of another length"
    read = _checked(lambda value: isinstance(value, (list, tuple)) and least <= len(value) <= most, what)
    return lambda value: tuple(map(reader, read(value)))


def paired(first: Reader[K], second: Reader[T]) -> Reader[tuple[K, T]]:
    """Read a list of two."""
    read = listed(lambda value: value, 2, least=2)
    return lambda value: (first(read(value)[0]), second(read(value)[1]))


def mapped(key: Reader[K], reader: Reader[T], most: int = _WORD) -> Reader[dict[K, T]]:
    """Read an object of up to ``most`` names, which may be any."""
    read = _checked(lambda value: isinstance(value, dict) and len(value) <= most, "is no object, or too long")
    return lambda value: {key(name): reader(each) for name, each in read(value).items()}


def fields(
    readers: dict[str, Reader[Any]], usual: Container[str] = (), *, strict: bool = False
) -> Reader[dict[str, Any]]:
    """Read an object to a dict. Fields that are ``usual`` may be missing; others than these are ignored, or
    refused if ``strict``.
    """

    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Malformed("is no object")
        if strict and not value.keys() <= readers.keys():
            raise Malformed("has unknown fields")
        found = {}
        for name, reader in readers.items():
            if name in value:
                try:
                    found[name] = reader(value[name])
                except Malformed as error:
                    raise Malformed(error.what, (name, *error.path)) from None
            elif name not in usual:
                raise Malformed("is missing", (name,))
        return found

    return read


def record(
    kind: Callable[..., T], *, strict: bool = False, complete: bool = False, **readers: Reader[Any]
) -> Reader[T]:
    """Read an object of a class (a named tuple or a dataclass).

    Args:
        strict: refuse fields that the class does not have.
        complete: refuse objects that lack a field, even if that has a value in the class.
        readers: of fields whose annotation says too little.
    """
    module = vars(sys.modules[kind.__module__])
    hints = kind.__annotations__.items()
    known = {name: readers.get(name) or _reader_of(hint, module, strict) for name, hint in hints}
    usual = () if complete else getattr(kind, "_field_defaults", vars(kind))
    read = fields(known, usual, strict=strict)
    return lambda value: kind(**read(value))


_PLAIN: dict[str, Reader[Any]] = {"int": whole(), "str": text(), "bool": truth}
_PLAIN["float"] = seconds(least=-_LARGEST)


def _reader_of(hint: Any, names: dict[str, Any], strict: bool) -> Reader[Any]:
    """Find the reader of an annotation, which is text as in the source; ``names`` are those of its module."""
    said: str = getattr(hint, "__forward_arg__", hint)  # as a named tuple keeps it
    if said.endswith(" | None"):
        reader = _reader_of(said[: -len(" | None")], names, strict)
        return lambda value: None if value is None else reader(value)
    if said.startswith("tuple[") and said.endswith(", ...]"):
        return listed(_reader_of(said[len("tuple[") : -len(", ...]")], names, strict))
    if said in _PLAIN:
        return _PLAIN[said]
    meant = names[said]
    return record(meant, strict=strict) if isinstance(meant, type) else meant.__metadata__[0]
