"""A Ray cluster of this machine for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray.session import Session, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Session]:
    """The process that runs tests beside the cluster."""
    pytest.importorskip("ray", reason="Ray is not installed")
    if reason := why_not():
        pytest.skip(reason)
    made = Session()
    yield made
    made.close()
