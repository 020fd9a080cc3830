"""Questions that a rank can ask about the Spark task that it runs in."""

from __future__ import annotations

import os

from horovod.launch.launchers.spark import DEVICES_VARIABLE

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """Addresses of the GPUs that Spark has assigned to the task of this rank
    (``spark.task.resource.gpu.amount``), as texts; empty if there are none.
    """
    return [address for address in os.environ.get(DEVICES_VARIABLE, "").split(",") if address]
