"""Search for the part of a call that cannot be pickled, and its description for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cloudpickle

from horovod.launch.calls.pickles import pack

__all__ = ["why_unpicklable", "why_value_unpicklable"]

_MOST_DEEP = 5


def why_unpicklable(
    func: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any], error: Exception
) -> str:
    """A sentence that names the object, by the way from the call to it. ``error``: of pickling the call."""
    whole = [("the function", func), *_arguments(args, kwargs)]
    for name, value in whole:
        if not _goes(value):
            return (
                f"{_which(name, value, error)} "
                "Make it inside of the function, or leave it out of what the function uses."
            )
    return f"The call cannot be pickled. {type(error).__name__}: {error}"


def why_value_unpicklable(name: str, value: Any) -> str | None:
    """The same for one value that has a name, such as "parameter loss"; None: it can be pickled."""
    try:
        pack(value)
    except Exception as error:
        return _which(name, value, error)
    return None


def _which(name: str, value: Any, error: Exception) -> str:
    name, value = _deepest(name, value)
    return (
        f"{name} cannot be pickled, which is how it would reach the other processes: it is "
        f"{type(value).__module__}.{type(value).__qualname__}. {type(error).__name__}: {error}."
    )


def _deepest(name: str, value: Any) -> tuple[str, Any]:
    for _ in range(_MOST_DEEP):
        for part, below in _parts(value):
            if not _goes(below):
                name, value = f"{part} of {name}", below
                break
        else:
            break
    return name, value


def _arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(args):
        yield f"argument {number}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Parts of an object, each with a name."""
    function = getattr(value, "__func__", value)
    if hasattr(value, "__self__") and not isinstance(value.__self__, type(cloudpickle)):
        yield "the object", value.__self__
    code = getattr(function, "__code__", None)
    if code is not None:
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars, cells, strict=False):
            try:
                yield f"variable {name!r}", cell.cell_contents
            except ValueError:
                continue  # not set yet
        for name in code.co_names:
            if name in function.__globals__:
                yield f"global variable {name!r}", function.__globals__[name]
        for default in function.__defaults__ or ():
            yield "a default argument", default
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield f"item {key!r:.40}", each
    elif isinstance(value, (list, tuple, set)):
        for number, each in enumerate(value):
            yield f"item {number}", each
    else:
        for name, each in getattr(value, "__dict__", {}).items():
            yield f"attribute {name!r}", each


def _goes(value: Any) -> bool:
    try:
        pack(value)
    except Exception:
        return False
    return True
