"""Limits of silence where many ranks share a core."""

from __future__ import annotations

import pytest

from horovod.config import Config
from horovod.runtime.forming import _patience


@pytest.mark.parametrize(
    ("ranks_of_a_core", "given", "limits"),
    [
        (1, {}, None),
        (32, {}, None),
        (64, {}, (6.0, 10.0, 60.0)),
        (128, {}, (12.0, 20.0, 120.0)),
        (128, {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "8"}, None),
        (128, {"HOROVOD_HEARTBEAT_TIMEOUT_SECONDS": "0"}, None),
        (128, {"HOROVOD_GLOO_TIMEOUT_SECONDS": "40"}, None),
        (128, {"HOROVOD_START_TIMEOUT": "10"}, None),
        (128, {"HOROVOD_START_TIMEOUT": "90"}, (12.0, 20.0, 120.0)),
    ],
)
def test_limits_that_nobody_has_set_grow_with_the_crowd(
    ranks_of_a_core: int, given: dict[str, str], limits: tuple[float, float, float] | None
) -> None:
    found = _patience(Config.from_environ(given), 1 / ranks_of_a_core)
    names = ("heartbeat_warning_s", "heartbeat_timeout_s", "operation_timeout_s")
    assert found == ({} if limits is None else dict(zip(names, limits, strict=True)))
