"""Arguments of executors, checked where they are given: what Ray or a rank says later does not name them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from horovod.errors import ConfigError

__all__ = ["arguments_of", "callbacks_of", "count", "function", "seconds", "share", "texts"]

_MOST_S = 1e9  # 31 years; more does not fit into what Ray counts with


def count(name: str, value: Any, least: int = 1) -> int:
    """
    Raises:
        ConfigError: it is no whole number of at least ``least``.
    """
    try:
        found = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise ConfigError(f"{name} must be a whole number and at least {least}, not {value!r}.")
    return found


def seconds(name: str, value: Any, *, least: float = 0, most: float = _MOST_S) -> None:
    """
    Raises:
        ConfigError: it is no number of at least ``least``, or more than ``most``.
    """
    number: Any = value
    if not isinstance(value, Real) or not number >= least:  # also where it is not a number
        raise ConfigError(f"{name} must be a number of seconds and at least {least:g}, not {value!r}.")
    if number > most:
        raise ConfigError(f"{name} must be at most {most:,.0f} seconds, not {value!r}.")


def share(name: str, value: Any) -> None:
    """An amount of a resource of Ray: it divides one, and gives several as a whole.

    Raises:
        ConfigError: it is negative, no number, or more than 1 and not whole.
    """
    if not isinstance(value, Real) or not float(value) >= 0 or (float(value) > 1 and float(value) % 1):
        raise ConfigError(f"{name} must be a whole number, or a share of one, as 0.5, not {value!r}.")


def function(what: str, fn: Any) -> None:
    """
    Raises:
        ConfigError: it cannot be called.
    """
    if not callable(fn):
        raise ConfigError(f"{what} calls a function on every rank, and {fn!r} is none.")


def arguments_of(
    what: str, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of a function.

    Raises:
        ConfigError: they are no list and no dictionary.
    """
    if args is not None and (isinstance(args, str | bytes) or not isinstance(args, Iterable)):
        raise ConfigError(f"{what}: args is a list of arguments, as [0.1, 20], not {args!r}.")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigError(f"{what}: kwargs is a dictionary of arguments by name, not {kwargs!r}.")
    return tuple(args or ()), dict(kwargs or {})


def callbacks_of(callbacks: Any) -> Sequence[Callable[[Any], Any]]:
    """
    Raises:
        ConfigError: they are no list of functions.
    """
    if callable(callbacks) or not all(map(callable, callbacks or ())):
        raise ConfigError(f"callbacks is a list of functions, as [print], not {callbacks!r}.")
    return tuple(callbacks or ())


def texts(variables: Mapping[Any, Any] | None) -> dict[str, str]:
    """Variables for the environment; values become texts.

    Raises:
        ConfigError: a name is no text, a value is None, or no environment can hold them.
    """
    said = {}
    for name, value in (variables or {}).items():
        if not isinstance(name, str) or value is None:
            raise ConfigError(f"Environment variables have a name and a value, not {name!r}={value!r}.")
        said[name] = str(value)
        if why := _why_no_variable(name, said[name]):
            raise ConfigError(f"{name!r} cannot be set as an environment variable: {why}.")
    return said


def _why_no_variable(name: str, value: str) -> str:
    """Why a process cannot have this variable; empty: it can."""
    if not name:
        return "its name is empty"
    if "=" in name:
        return "its name has a '=' in it"
    for what, text in (("name", name), ("value", value)):
        if "\0" in text:
            return f"its {what} has a NUL character in it"
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return f"its {what} cannot be encoded as UTF-8"
    return ""
