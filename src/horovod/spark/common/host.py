"""Identity of this machine, as far as Spark is concerned."""

from __future__ import annotations

import hashlib
import os
import socket

from horovod.bootstrap.place.proc import boot_id, namespace

__all__ = ["host_hash", "is_databricks", "machine"]


def machine() -> str:
    """Equal for processes that share a machine. Containers of YARN are machines of their own, though they may
    share a kernel."""
    spaces = [str(namespace(kind)) for kind in ("net", "pid")]
    return " ".join([boot_id(), socket.gethostname(), *spaces, os.environ.get("CONTAINER_ID", "")])


def host_hash(salt: str | None = None) -> str:
    """The name of this host and a digest of what tells it from others; ``salt`` gives others."""
    digest = hashlib.sha256(f"{machine()} {salt or ''}".encode()).hexdigest()[:16]
    return f"{socket.gethostname().partition('.')[0]}-{digest}"


def is_databricks() -> bool:
    """Return whether this process runs on Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ
