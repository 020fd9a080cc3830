"""A failure within a compiled function of JAX, which raises an error of its own for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horovod._keras.frameworks.jax import ADAPTER
from horovod.errors import HorovodInternalError
from horovod.runtime import lifecycle


@pytest.fixture(autouse=True)
def a_world_of_one() -> Iterator[None]:
    lifecycle.start(environ={})
    yield
    lifecycle.stop()


def test_it_is_told_once_in_place_of_the_error_of_jax() -> None:
    ADAPTER.failure = HorovodInternalError("rank 1 is gone")
    assert ADAPTER.own_failure(KeyError("not of JAX")) is None
    ADAPTER.failure = failure = HorovodInternalError("rank 1 is gone")
    assert ADAPTER.own_failure(RuntimeError("callback failed")) is failure
    assert ADAPTER.own_failure(RuntimeError("out of memory")) is None


def test_one_of_an_earlier_world_is_not_told() -> None:
    # The script has caught the error of JAX by itself.
    ADAPTER.failure = HorovodInternalError("rank 1 is gone")
    lifecycle.stop()
    lifecycle.start(environ={})
    assert ADAPTER.own_failure(RuntimeError("out of memory")) is None
