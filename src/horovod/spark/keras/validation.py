"""Batches to validate on, as Keras takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["validation_set"]


def validation_set(base: Any, batches: Callable[[], Iterator[Any]], steps: int) -> Any:
    """The same batches in every epoch.

    Of a generator Keras looks at the first batches, and gives these to every validation again, before those
    that follow where the one before has ended.

    Args:
        base: ``PyDataset`` of Keras 3, or ``Sequence`` of Keras 2.
        batches: begins anew: returns inputs, outputs and perhaps weights, batch by batch.
        steps: how many there are.
    """

    class ValidationSet(base):  # type: ignore[misc]
        """Batches by their number; in order they are read once."""

        def __init__(self) -> None:
            super().__init__()
            self._stream: Iterator[Any] = iter(())
            self._next = steps  # number of the batch that the stream has next

        def __len__(self) -> int:
            return steps

        def __getitem__(self, number: int) -> Any:
            if number < self._next:
                self._stream, self._next = batches(), 0
            while self._next < number:
                next(self._stream)
                self._next += 1
            self._next += 1
            try:
                return next(self._stream)
            except StopIteration:
                raise RuntimeError(
                    f"The data module ended after {number} of {steps} batches to validate on. It must be "
                    "endless, or have as many on every rank."
                ) from None

    return ValidationSet()
