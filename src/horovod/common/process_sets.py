"""Compatibility names: see :mod:`horovod.process_set`."""

from horovod.process_set import ProcessSet, global_process_set

__all__ = ["ProcessSet", "global_process_set"]
