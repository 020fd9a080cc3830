"""Variables of any framework: told apart by identity, also within those of Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horovod.errors import InvalidArgumentError

__all__ = ["VariableSet", "keep_apart", "kept_apart", "local_weights", "own_variable"]


def own_variable(variable: Any) -> Any:
    """The framework's variable inside of a Keras one, which is the same object wherever it comes from;
    otherwise ``variable`` itself.

    A Keras variable on JAX is returned as it is: what it holds is another array after each assignment.
    """
    inner = getattr(variable, "_value", None)
    if inner is not None and (hasattr(inner, "assign") or hasattr(inner, "requires_grad")):
        return inner
    return variable


def keep_apart(variable: Any) -> None:
    """From now on every rank has its own value of ``variable``, an object of Keras: the sum of a step that is
    not finished. To overwrite it by that of another rank would count a batch twice, and lose one."""
    variable._horovod_kept_apart = True


def kept_apart(variable: Any) -> bool:
    """Return whether every rank has its own value of ``variable``."""
    return getattr(variable, "_horovod_kept_apart", False)


def local_weights(local_layers: Any) -> list[Any]:
    """The weights of one Keras layer or of a collection of layers; ``None`` has none. Also those that are
    frozen now: they have no gradients until they are trained.

    Raises:
        ValueError: neither; or a layer has no weights yet, so that later ones would be reduced.
    """
    if local_layers is None:
        return []
    several = isinstance(local_layers, list | tuple | set | frozenset)
    layers = list(local_layers) if several else [local_layers]
    weights: list[Any] = []
    for layer in layers:
        # True for layers of both generations of Keras.
        if not (hasattr(layer, "trainable_weights") and callable(getattr(layer, "call", None))):
            raise InvalidArgumentError(
                f"local_layers must be a Keras layer or a collection of layers, got {layer!r}."
            )
        if not (layer.weights or getattr(layer, "built", True)):
            raise InvalidArgumentError(
                f"The layer {layer.name} of local_layers is not built: it has no weights yet. Build the "
                "model first: give it an input shape, call model.build(input_shape), or call it with a batch."
            )
        weights += layer.weights
    return weights


class VariableSet:
    """Variables by identity: some kinds compare element by element, and names need not be unique."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        self._kept: dict[int, Any] = {}  # with the object, so that no other gets its number
        for variable in variables:
            self.add(variable)

    def add(self, variable: Any) -> None:
        own = own_variable(variable)
        self._kept[id(own)] = own

    def __contains__(self, variable: object) -> bool:
        return id(own_variable(variable)) in self._kept

    def __len__(self) -> int:
        return len(self._kept)
