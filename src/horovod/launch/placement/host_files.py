"""Files that name hosts: of users, and of batch systems."""

from __future__ import annotations

from pathlib import Path

from horovod.errors import ConfigError

__all__ = ["host_text"]

_MOST_BYTES = 16 << 20


def host_text(path: str, named_by: str = "") -> str:
    """The text of a file with hosts. ``named_by``: the variable that names it, if any.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            return data.decode("utf-8-sig")  # some editors begin a file with a mark
        why = f"it has more than {_MOST_BYTES >> 20} MiB"
    except (OSError, ValueError) as error:  # a path with a zero in it is a ValueError, too
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
    source = f"{named_by} names the hosts in {path}, which" if named_by else f"The host file {path}"
    hint = " Give the hosts with -H." if named_by else ""
    raise ConfigError(f"{source} cannot be read: {why}.{hint}", variable=named_by or None)
