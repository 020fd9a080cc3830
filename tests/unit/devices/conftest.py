"""Libraries of a vendor, for every test here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.vendor.libraries import build


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process that finds them."""
    return build(tmp_path_factory.mktemp("vendor"))
