"""Devices of this machine, the one that a rank takes, and the way that tensors in their memory would travel.

Nothing is loaded by an import of this package. A driver is never started in a process that asks: programs
that fork afterwards would break.

    python -m horovod.devices
"""

from __future__ import annotations

__all__ = ["report"]


def report() -> str:
    """The section of ``horovodrun --check-build`` on devices: what there is, and the way of their tensors.

    Takes up to some seconds, as drivers start slowly. Never raises for what is missing: the text says it.
    """
    from horovod.devices.inventory import take_inventory
    from horovod.devices.text import section

    return section(take_inventory())
