"""The one device that a rank sees, if the job asks for that. Decided on the rank's own host: masks differ."""

from __future__ import annotations

_ASKED = b"HOROVOD_DEVICE_PER_RANK"
_LOCAL_RANK = b"HOROVOD_LOCAL_RANK"


def asked_for(environment: dict[bytes, bytes]) -> bool:
    """Whether each rank with this environment shall see one device only."""
    text = environment.get(_ASKED, b"").strip()
    return text.isdigit() and int(text) > 0


def visible_devices(environment: dict[bytes, bytes]) -> list[str]:
    """What names each device that ranks with this environment may use."""
    from horovod.devices import mask  # only who asks for it pays for it

    text = environment.get(mask.MASK.encode())
    return mask.visible({} if text is None else {mask.MASK: text.decode("latin-1")})


def give_own(environment: dict[bytes, bytes], devices: list[str]) -> None:
    """Hide all devices but the one of this rank; without any, nothing changes."""
    if devices:
        from horovod.devices import mask

        local_rank = environment.get(_LOCAL_RANK, b"")
        chosen = mask.of_rank(devices, int(local_rank) if local_rank.isdigit() else 0)
        environment[mask.MASK.encode()] = chosen.encode("latin-1")
