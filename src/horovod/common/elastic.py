"""Compatibility names: see :mod:`horovod.elastic`."""

from horovod.elastic.notification import HostUpdateResult, WorkerNotificationManager, notification_manager
from horovod.elastic.run import run_fn
from horovod.elastic.state import ObjectState, State
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]
