"""Facts about this host for the launcher, and the one device that each rank sees if the job asks for that.

Devices are shared out here and not by the launcher, as the masks of hosts differ.
"""

from __future__ import annotations

import os
import sys

from horovod.bootstrap.place.proc import boot_id, namespace

_ASKED = b"HOROVOD_DEVICE_PER_RANK"
_LOCAL_RANK = b"HOROVOD_LOCAL_RANK"
_LOCAL_SIZE = b"HOROVOD_LOCAL_SIZE"


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


def asked_for(environment: dict[bytes, bytes]) -> bool:
    """True if each rank with this environment shall see one device only."""
    text = environment.get(_ASKED, b"").strip()
    return text.isdigit() and int(text) > 0


def visible_devices(environment: dict[bytes, bytes]) -> list[str]:
    """Names of the devices that ranks with this environment may use."""
    from horovod.devices import mask  # only who asks for it pays for it

    text = environment.get(mask.MASK.encode())
    return mask.visible({} if text is None else {mask.MASK: text.decode("latin-1")})


def ranks_too_many(
    environments: list[dict[bytes, bytes]], devices: list[str], *, one_by_one: bool = False
) -> int:
    """Number of ranks on this host, if it has fewer devices than that; 0: it has enough, or another rank of
    this host reports the number. `environments`: of the ranks that this agent starts now. `one_by_one`: it
    may start the others, too.

    Where another launcher places ranks, each has an agent of its own. A mask with one device may be the
    rank's own then, so nothing can be said of the others.
    """
    if not any(_number(each, _LOCAL_RANK) == 0 for each in environments):
        return 0
    ranks = len(environments)
    if one_by_one or len(devices) != 1:
        ranks = max(ranks, *(_number(each, _LOCAL_SIZE) for each in environments))
    return ranks if len(devices) < ranks else 0


def give_own(environment: dict[bytes, bytes], devices: list[str]) -> None:
    """Hide all devices but the one of this rank; without any, nothing changes."""
    if devices:
        from horovod.devices import mask

        chosen = mask.of_rank(devices, _number(environment, _LOCAL_RANK))
        environment[mask.MASK.encode()] = chosen.encode("latin-1")


def _number(environment: dict[bytes, bytes], name: bytes) -> int:
    text = environment.get(name, b"")
    return int(text) if text.isdigit() else 0
