"""Tests on several hosts: each module asks for what it needs, and skips with a reason where it is lacking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tests.hosts.simulated import SimulatedHosts, why_not
from tests.hosts.slurm import slurm_on, why_no_slurm


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


@pytest.fixture(scope="module")
def slurm(two_hosts: SimulatedHosts) -> Iterator[Mapping[str, str]]:
    """A cluster of Slurm on both: the environment of its clients."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_on(two_hosts) as clients:
        yield clients
