"""The contract of `horovod.keras` on each framework that Keras computes with, and of
`horovod.tensorflow.keras` with Keras 2."""

from __future__ import annotations

import pytest
from tests.contract.keras.cases import CASES
from tests.contract.keras.legacy import CASES as LEGACY_CASES
from tests.contract.world import World, run_cases

BACKENDS = ("torch", "jax", "tensorflow")
_QUIET = ("TF_CPP_MIN_LOG_LEVEL", "3")
# XLA, which compiles the steps of JAX, shall be done soon: they run a few times.
_UNOPTIMIZED = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras(case: str, backend: str) -> None:
    world = World(2, variables=(("KERAS_BACKEND", backend), _QUIET, _UNOPTIMIZED))
    run_cases("tests.contract.keras.cases", world).check(case, world)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(LEGACY_CASES))
def test_keras_2(case: str) -> None:
    world = World(2, variables=(("TF_USE_LEGACY_KERAS", "1"), _QUIET))
    run_cases("tests.contract.keras.legacy", world).check(case, world)
