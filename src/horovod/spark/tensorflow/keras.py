"""``LogCallback``: how a training goes on, on the driver."""

from __future__ import annotations

from typing import Any

import keras

from horovod.spark.log import log_to_driver

__all__ = ["LogCallback"]


class LogCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sends the metrics of each epoch to the driver (``horovod.spark.log.log_to_driver``).

    Args:
        per_batch_log: those of each batch, too.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self._per_batch_log = per_batch_log
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        log_to_driver(f"Epoch {epoch} begins.")

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._per_batch_log:
            log_to_driver(f"Epoch {self._epoch}, batch {batch}: {_shown(logs)}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        log_to_driver(f"Epoch {epoch} ends: {_shown(logs)}")


def _shown(logs: dict[str, Any] | None) -> str:
    return ", ".join(f"{name} {float(value):.6g}" for name, value in (logs or {}).items()) or "no metrics"
