"""Small things that all of ``horovod.tensorflow`` uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.gradients.groups import split_list

__all__ = ["_executing_eagerly", "raw", "refs_to_vars", "split_list", "vars_to_refs"]


def _executing_eagerly() -> bool:
    """Return whether ops run as they are called."""
    return bool(tf.executing_eagerly())


def raw(tensor: Any) -> Any:
    """``tensor`` as TensorFlow's ops take it: of a variable of Keras 3 the one inside, else itself."""
    value = getattr(tensor, "value", None)
    return tensor if value is None or callable(value) else value


def vars_to_refs(variables: Any) -> Any:
    """``variables``, a sequence or one alone, as keys for a dictionary."""
    if isinstance(variables, Sequence):
        return tuple(vars_to_refs(variable) for variable in variables)
    return raw(variables).ref()


def refs_to_vars(refs: Any) -> Any:
    """Undo :func:`vars_to_refs`."""
    if isinstance(refs, Sequence):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
