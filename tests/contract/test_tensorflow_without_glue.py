"""`horovod.tensorflow` where TensorFlow lacks a function that the native ops need: a name is taken away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.tensorflow.without_glue import CASES
from tests.contract.world import ROOT, World, run_cases

GLUE = ROOT / "src" / "horovod" / "tensorflow" / "_tensorflow.so"
NEEDED = b"TF_ForwardInputOrAllocateOutput\0"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    library = GLUE.read_bytes()
    assert library.count(NEEDED) == 1
    lacking: Path = tmp_path_factory.mktemp("glue") / "_tensorflow.so"
    lacking.write_bytes(library.replace(NEEDED, NEEDED[:-2] + b"X\0"))
    return World(2, variables=(("FARANDOLE_TENSORFLOW_GLUE", str(lacking)), ("TF_CPP_MIN_LOG_LEVEL", "3")))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(CASES))
def test_without_glue(case: str, world: World) -> None:
    run_cases("tests.contract.tensorflow.without_glue", world).check(case, world)
