"""Functions on their way to the Python workers of Spark, with the modules that these cannot import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod.errors import InvalidArgumentError
from horovod.launch.calls.functions import pack_call, unpack_call
from horovod.launch.calls.unpicklable import why_value_unpicklable

__all__ = ["Shipped", "require_picklable"]


class Shipped:
    """Calls a function, and brings along where it is unpickled what it needs: as `horovod.spark.run` does.

    Spark pickles classes of modules by their names. Those of a script's own modules are not there on
    executors.

    Args:
        function: may be anything that can be called.
        what: is called so if it cannot be pickled.

    Raises:
        InvalidArgumentError: it cannot be pickled; says which part.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self._function = function
        try:
            self._data = b"".join(pack_call(function, (), {}))
        except Exception as error:
            why = why_value_unpicklable(what, function) or f"{what} cannot be pickled: {error}"
            raise InvalidArgumentError(why) from error

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self._data,)


def _opened(data: bytes) -> Callable[..., Any]:
    return unpack_call(memoryview(bytearray(data)))[0]


def require_picklable(owner: str, values: Mapping[str, Any]) -> None:
    """Make sure that parameters can go to the ranks.

    Args:
        owner: whose parameters they are.
        values: by name.

    Raises:
        InvalidArgumentError: one cannot be pickled; says which part of it.
    """
    for name, value in values.items():
        why = why_value_unpicklable(f"parameter {name}", value)
        if why is not None:
            raise InvalidArgumentError(
                f"{owner}: {why} Make it where it is used, on the ranks, or leave it out."
            )
