"""What the launcher wants to know about a host."""

from __future__ import annotations

import os
import sys

from horovod.bootstrap.proc import boot_id, namespace


def facts() -> dict[str, object]:
    """The fields of the event `hello`."""
    from horovod.bootstrap.cores import usable_cores  # nobody asks an agent that is not on another host

    spaces = [str(namespace(kind)) for kind in ("net", "pid")]
    return {
        "host": os.uname().nodename,
        "machine": " ".join([boot_id(), *spaces]),
        "cores": usable_cores()[0],
        "python": sys.executable,
        "connection": os.environ.get("SSH_CONNECTION", ""),
    }
