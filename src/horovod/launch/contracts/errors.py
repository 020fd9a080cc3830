"""Errors of launching besides those of `horovod.errors`, and exit statuses: see ``horovodrun --help``."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.errors import ConfigError, HorovodError, LaunchError

__all__ = ["CommandNotStarted", "HostsUnreachable", "JobInterrupted", "LauncherFailed", "exit_status"]

_USAGE_STATUS = 2


class CommandNotStarted(LaunchError):
    """The command cannot be run. ``exit_code`` as a shell has it: 127 not found, 126 not executable."""

    def __init__(self, message: str = "", *, exit_code: int = 126) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LauncherFailed(LaunchError):
    """The program that starts the ranks failed; ``exit_code`` is its exit status."""

    def __init__(self, message: str = "", *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class JobInterrupted(LaunchError):
    """A signal told the launcher to end the job. ``exit_code`` is 128 + ``signum``."""

    def __init__(self, message: str = "", *, signum: int = 0) -> None:
        super().__init__(message)
        self.signum = signum
        self.exit_code = 128 + signum


class HostsUnreachable(LaunchError):
    """No process can be started on some hosts. ``reasons`` by host; ``exit_code`` 124 if time ran out."""

    def __init__(
        self, message: str = "", *, reasons: Mapping[str, str] | None = None, exit_code: int = 1
    ) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})
        self.exit_code = exit_code


def exit_status(error: HorovodError) -> int:
    """Exit status of a command after `error`: see ``horovodrun --help``."""
    if isinstance(error, ConfigError):
        return _USAGE_STATUS
    code = getattr(error, "exit_code", None)
    if not isinstance(code, int):
        return 1
    return 128 - code if code < 0 else code
