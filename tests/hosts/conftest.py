"""Tests on several hosts: each module asks for what it needs, and skips with a reason where it is lacking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.hosts.simulated import SimulatedHosts, why_not


@pytest.fixture(scope="session")
def simulation() -> None:
    """Skips where simulated hosts cannot be made."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def two_hosts(simulation: None) -> Iterator[SimulatedHosts]:
    with SimulatedHosts(2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def four_hosts(simulation: None) -> Iterator[SimulatedHosts]:
    with SimulatedHosts(4) as hosts:
        yield hosts
