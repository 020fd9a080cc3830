"""Learning rate and momentum of optimizers of every generation of Keras."""

from __future__ import annotations

from typing import Any

from horovod.errors import InvalidArgumentError

__all__ = ["get_learning_rate", "scale_momentum", "set_learning_rate"]


def _parts(optimizer: Any) -> list[Any]:
    """The optimizers that update variables, within loss scaling and combinations."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return _parts(inner)
    return list(getattr(optimizer, "optimizers", None) or [optimizer])


def get_learning_rate(backend: Any, optimizer: Any) -> float:
    """The present learning rate. A combination of optimizers has that of its first one."""
    rate = _parts(optimizer)[0].learning_rate
    if hasattr(rate, "numpy"):
        return float(rate.numpy())
    try:
        return float(rate)
    except TypeError:
        pass
    if callable(rate):  # a schedule that its optimizer does not call itself
        return get_value(backend, rate(_parts(optimizer)[0].iterations))
    return get_value(backend, rate)


def get_value(backend: Any, variable: Any) -> float:
    """The number in a variable or tensor, also of a graph."""
    if hasattr(variable, "numpy"):
        return float(variable.numpy())
    return float(backend.get_value(variable))


def set_learning_rate(backend: Any, optimizer: Any, rate: float) -> None:
    """Give ``optimizer`` the learning rate ``rate``.

    Raises:
        ValueError: it belongs to a schedule.
    """
    for part in _parts(optimizer):
        try:
            part.learning_rate = rate
        except TypeError as error:
            raise InvalidArgumentError(
                f"The learning rate of {part.name} is given by a schedule and cannot be set. Make the "
                "optimizer with a number, or leave out the callbacks that change the learning rate."
            ) from error


def scale_momentum(backend: Any, optimizer: Any, factor: float) -> None:
    """Multiply the velocities of momentum, which contain the learning rate they were made with.

    This has the effect of another momentum for one batch. The momentum itself cannot change: it is a constant
    in a compiled step.
    """
    for part in _parts(optimizer):
        if not getattr(part, "momentum", None):
            continue
        for velocity in _velocities(part):
            if velocity is not None:
                velocity.assign(velocity * factor)


def _velocities(optimizer: Any) -> list[Any]:
    for name in ("momentums", "_momentums"):
        slots = getattr(optimizer, name, None)
        if slots:
            return list(slots)
    if not hasattr(optimizer, "get_slot"):
        return []
    # Optimizers of Keras before 2.11. Variables of a graph are left alone; their velocity adapts by itself.
    weights = getattr(optimizer, "_weights", [])
    return [
        weight
        for weight in weights
        if "/momentum" in getattr(weight, "name", "")
        and hasattr(weight, "assign")
        and hasattr(weight, "numpy")
    ]
