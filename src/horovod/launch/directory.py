"""The directory that a job works in."""

from __future__ import annotations

import os

from horovod.errors import LaunchError

__all__ = ["current_directory", "shown_directory"]


def current_directory() -> str:
    """The path of the one that this process is in.

    Raises:
        LaunchError: it was deleted, or may not be read.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"The current directory, in which ranks would work, cannot be found ({error.strerror}): was it "
            "deleted? Change to another one, and start again."
        ) from error


def shown_directory() -> str:
    """The same for a message, whatever has become of it."""
    try:
        return os.getcwd()
    except OSError:
        return "like that of this launcher, which has been deleted"
