"""Wording of hosts and slots in sentences about elastic jobs."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["named"]


def named(hosts: Mapping[str, int]) -> str:
    """Hosts and their slots: ``a:2,b:1``."""
    return ",".join(f"{name}:{slots}" for name, slots in hosts.items()) or "none"
