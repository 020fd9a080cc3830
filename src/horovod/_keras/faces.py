"""Faces that users see: callbacks, made from those of ``callbacks.py`` and ``elastic.py`` for one Keras, and
the text of an optimizer.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["face", "shown_as_distributed"]


def shown_as_distributed(own: str) -> str:
    """``repr`` of a distributed optimizer; ``own``: that of the class it wraps.

    The class has the name and module of the wrapped one, as files name it by these. Libraries look for
    ``horovod._keras`` in the text, to know which optimizers reduce gradients.
    """
    return f"<horovod._keras.DistributedOptimizer of {own}>"


def face(implementation: type[Any], keras: Any, module: str) -> Any:
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
