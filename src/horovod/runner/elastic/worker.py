"""Compatibility names: see :mod:`horovod.elastic.notification`."""

from horovod.common.elastic import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
