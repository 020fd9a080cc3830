"""Exit statuses: see ``horovodrun --help``."""

from __future__ import annotations

from horovod.errors import ConfigError, HorovodError

__all__ = ["exit_status"]

_USAGE_STATUS = 2


def exit_status(error: HorovodError) -> int:
    """Exit status of a command after `error`: see ``horovodrun --help``."""
    if isinstance(error, ConfigError):
        return _USAGE_STATUS
    code = getattr(error, "exit_code", None)
    if not isinstance(code, int):
        return 1
    return 128 - code if code < 0 else code
