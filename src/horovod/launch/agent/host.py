"""Facts that the launcher wants to know about a host."""

from __future__ import annotations

import os
import sys

from horovod.bootstrap.place.proc import boot_id, namespace


def machine_name() -> str:
    """The same text if and only if two processes are on one system."""
    return " ".join([boot_id(), *(str(namespace(kind)) for kind in ("net", "pid"))])


def facts() -> dict[str, object]:
    """The fields of the event `hello`."""
    from horovod.bootstrap.place.cores import usable_cores  # nobody asks an agent that is not on another host

    return {
        "host": os.uname().nodename,
        "machine": machine_name(),
        "cores": usable_cores()[0],
        "python": sys.executable,
        "connection": os.environ.get("SSH_CONNECTION", ""),
    }
