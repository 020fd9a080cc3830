"""Links, which carry bytes to an agent and back: a child with three pipes, or whatever looks like one."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import IO, Protocol

__all__ = ["Child", "Link"]


class Link(Protocol):
    """Three pipes to an agent, there from the beginning. Whoever talks to the agent closes them."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    @property
    def why(self) -> str:
        """Why it ended, if it knows better than its status; else empty."""

    def kill(self) -> None:
        """Be over soon, whatever the agent does."""

    def wait(self, timeout: float | None = None) -> int:
        """The status, once it is over. Raises ``subprocess.TimeoutExpired``."""


class Child(subprocess.Popen[bytes]):
    """A command, as a link. In a session of its own: Ctrl-C reaches the launcher only, which decides."""

    why = ""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
