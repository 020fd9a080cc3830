"""The positions of ``tf.data`` iterators, as a part of an elastic state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from horovod.errors import InvalidArgumentError

__all__ = ["Positions", "is_iterator"]


def is_iterator(value: Any) -> bool:
    """Return whether ``value`` is the ``iter()`` of a ``tf.data.Dataset``. Does not load TensorFlow."""
    tf: Any = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, tf.data.Iterator) and hasattr(value, "_serialize_to_tensors")


class Positions:
    """The last whole set of positions of some iterators; saving has two steps, so that it fails for all or
    for none.

    Each rank keeps its own, as it reads its own part of the data. Who has not saved as often as rank 0, such
    as a newcomer, takes over that of rank 0: it has read as many batches.

    Args:
        iterators: by name.

    Attributes:
        saves: how often all of the state was saved; equal on ranks that are in step.

    Raises:
        ValueError: the position of one cannot be saved.
    """

    def __init__(self, iterators: dict[str, Any]) -> None:
        self.iterators = iterators
        self.saves = self._new_saves = 0
        self._new: dict[str, Any] = {}
        self._whole: dict[str, Any] = {name: _position(name, each) for name, each in iterators.items()}

    def prepare(self) -> None:
        """Note the present positions."""
        self._new_saves = self.saves + 1
        self._new = {name: _position(name, each) for name, each in self.iterators.items()}

    def adopt(self) -> None:
        """Make the prepared positions the last set; cannot fail."""
        self.saves = self._new_saves
        self._whole, self._new = self._new, {}

    def restore(self) -> None:
        """Go back to the last set."""
        for name, position in self._whole.items():
            self.iterators[name]._restore_from_tensors(position)

    def replace(self, name: str, iterator: Any) -> None:
        """Keep another iterator under ``name`` from now on, and save its position."""
        self._whole[name] = _position(name, iterator)
        self.iterators[name] = iterator

    def sync(self, broadcast: Callable[[Any], Any], rank: int, saves: int) -> None:
        """Be in step with rank 0. A collective.

        Args:
            broadcast: returns rank 0's argument on every rank.
            rank: of this process, now.
            saves: of rank 0.
        """
        if self.iterators:
            self.prepare()
            mine = {name: _packed(each) for name, each in self._new.items()} if rank == 0 else {}
            positions = broadcast(mine)
            if saves != self.saves:
                for name, position in positions.items():
                    self.iterators[name]._restore_from_tensors(_unpacked(position))
                self.prepare()
        self._new_saves = saves + 1


def _position(name: str, iterator: Any) -> dict[str, Any]:
    tf: Any = sys.modules["tensorflow"]
    try:
        position: dict[str, Any] = iterator._serialize_to_tensors()
    except tf.errors.FailedPreconditionError as error:
        raise InvalidArgumentError(
            f"The position of the iterator {name!r} cannot be saved: {error.message} Give its random "
            "operations a seed, read without Python functions, or let what is outside be left out: options = "
            "tf.data.Options(); options.experimental_external_state_policy = "
            "tf.data.experimental.ExternalStatePolicy.IGNORE; dataset = dataset.with_options(options)."
        ) from error
    return position


def _packed(position: dict[str, Any]) -> dict[str, bytes]:
    tf: Any = sys.modules["tensorflow"]
    return {key: tf.io.serialize_tensor(value).numpy() for key, value in position.items()}


def _unpacked(position: dict[str, bytes]) -> dict[str, Any]:
    tf: Any = sys.modules["tensorflow"]
    return {key: tf.io.parse_tensor(text, tf.variant) for key, text in position.items()}
