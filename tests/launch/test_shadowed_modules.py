"""Jobs in a folder with modules that are called like some of Python's: their start does not see these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.launching import environment

pytestmark = pytest.mark.timeout(120)

SHADOWS = ("types", "logging", "random", "signal", "socket", "selectors", "json", "typing", "enum", "re")

# A program from elsewhere, such as a notebook's kernel: it looks for modules in this folder only later.
CALLS = """
import sys
import horovod
def train():
    import helper, os, sys
    print("from", helper.here, flush=True)
    return helper.here
run = horovod.run
import random, tempfile  # what this process imports later would be the user's
sys.path[:0] = sys.argv[1:]
print(run(train, num_proc=1), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with such modules, and one of the user's."""
    work = tmp_path / "work"
    work.mkdir()
    for name in SHADOWS:
        (work / f"{name}.py").write_text(f"raise RuntimeError('this is the {name} of the user')\n")
    (work / "helper.py").write_text("here = 'the folder of the user'\n")
    return work


def run(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("listed", [(), ("",), (".",)], ids=["not listed", "empty", "listed"])
def test_function_is_called_and_finds_the_modules_of_its_folder(
    listed: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    done = run((sys.executable, str(script), *listed), folder)
    assert done.returncode == 0, done.stdout
    assert "[0]<stdout>:from the folder of the user" in done.stdout
    assert "['the folder of the user']" in done.stdout


def test_ranks_of_mpirun_start(folder: Path, tmp_path: Path) -> None:
    start = tmp_path / "horovodrun"
    start.write_text(
        "import sys\nfrom horovod.runner.launch import run_commandline\nsys.exit(run_commandline())\n"
    )
    words = ("-np", "2", "--launcher", "mpirun", "--mpi-args=--allow-run-as-root --oversubscribe")
    done = run((sys.executable, str(start), *words, "sh", "-c", "echo started"), folder)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("<stdout>:started") == 2


def test_questions_that_are_put_to_a_python_of_our_own_are_answered(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        "from horovod.common.util import extension_available\n"
        "from horovod.bootstrap.place.mpi_library import _loads\n"
        "from horovod.devices.inventory import take_inventory\n"
        "import sys\n"
        "sys.path.insert(0, '.')\n"
        "assert extension_available('arrays')\n"
        "print(_loads(), take_inventory())\n"
    )
    done = run((sys.executable, str(script)), folder)
    assert done.returncode == 0, done.stdout
    elsewhere = run((sys.executable, str(script)), tmp_path)
    assert done.stdout == elsewhere.stdout
