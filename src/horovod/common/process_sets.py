"""Compatibility names: see :mod:`horovod.runtime.process_set`."""

from horovod.runtime.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
