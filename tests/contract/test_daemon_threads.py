"""A process may end while daemon threads of it are within our calls: quietly, and with its own status."""

from __future__ import annotations

import pytest
from tests.contract.job import run
from tests.contract.world import World

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("attempt", range(3))  # which thread is where is left to chance
@pytest.mark.parametrize("size", [1, 2])
def test_ends_with_threads_within_collectives(size: int, attempt: int) -> None:
    said = run(World(size), "tests.contract.daemon_rank", [], limit_s=60)
    assert said == size * "the script ends\n"
