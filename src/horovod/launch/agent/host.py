"""What the launcher wants to know about a host."""

from __future__ import annotations

import os
import sys

from horovod.bootstrap.proc import boot_id, namespace


def facts() -> dict[str, object]:
    """The fields of the event `hello`."""
    spaces = [str(namespace(kind)) for kind in ("net", "pid")]
    return {
        "host": os.uname().nodename,
        "machine": " ".join([boot_id(), *spaces]),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.executable,
        "connection": os.environ.get("SSH_CONNECTION", ""),
    }
