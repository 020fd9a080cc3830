"""Sentences of Horovod that programs look for in the errors of a job. They stand beside the project's own."""

from __future__ import annotations

__all__ = ["RANKS_FAILED", "TASKS_DID_NOT_START", "too_many_resets"]

RANKS_FAILED = "Horovod detected that one or more processes exited with non-zero status"
TASKS_DID_NOT_START = "Timed out waiting for Spark tasks to start"


def too_many_resets(limit: int) -> str:
    """The sentence for a job whose world has changed more often than ``limit``."""
    return f"Horovod was shutdown because number of resets during elastic job exceeded limit: {limit}"
