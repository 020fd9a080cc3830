"""Classes that are made at run time for a user's Keras: callbacks, and distributed optimizers, with their
text and the check that one made again is like the original.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["callback_class", "has_lost", "shown_as_distributed"]


def shown_as_distributed(own: str) -> str:
    """``repr`` of a distributed optimizer; ``own``: that of the class it wraps.

    The class has the name and module of the wrapped one, as files name it by these. Libraries look for
    ``horovod._keras`` in the text, to know which optimizers reduce gradients.
    """
    return f"<horovod._keras.DistributedOptimizer of {own}>"


def callback_class(implementation: type[Any], keras: Any, module: str) -> Any:
    """A class for users, made from ``implementation`` and the callback class of ``keras``.

    Its name is that of ``implementation`` without ``Impl``, its arguments are those after ``backend``.

    Args:
        module: name of the module that publishes the class.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        implementation.__init__(self, keras.backend, *args, **kwargs)

    given = inspect.signature(implementation.__init__)
    parameters = [each for each in given.parameters.values() if each.name not in ("backend", "args")]
    __init__.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    __init__.__doc__ = implementation.__init__.__doc__
    name = implementation.__name__.removesuffix("Impl")
    contents = {"__init__": __init__, "__doc__": implementation.__doc__, "__module__": module}
    return type(name, (implementation, keras.callbacks.Callback), contents)


_PLAIN = (bool, int, float, str, type(None))


def has_lost(optimizer: Any, made: Any) -> bool:
    """Return whether ``made`` lacks a plain attribute of ``optimizer`` or has another value: a class
    of the user may keep what its ``get_config()`` leaves out."""
    there = vars(made)
    return any(
        isinstance(value, _PLAIN) and value == value and (name not in there or there[name] != value)
        for name, value in vars(optimizer).items()
    )
