"""``horovodrun --check-build``: what this installation can do."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path

import pytest
from tests import fakes as vendor
from tests.launch.launching import LIMIT_S, PYTHON, environment, horovodrun

from horovod.common import util
from horovod.launch import check_build


def test_check_build_is_data_on_demand() -> None:
    report = json.loads(horovodrun("--check-build", "--json").stdout)
    assert report["version"] == "0.28.1"
    assert report["controllers"]["Gloo"]["available"] is True
    assert report["frameworks"]["PyTorch"]["available"] is True
    assert report["frameworks"]["PyTorch"]["version"] == importlib.metadata.version("torch")
    assert report["operations"]["DDL"] == {"available": False, "found": "not supported"}
    assert report["transports"]["TCP"]["available"] is True
    assert isinstance(report["devices"], list)
    for name in ("MPI", "Gloo", "NCCL", "DDL", "CCL"):
        built = bool(getattr(util, f"{name.lower()}_built")())
        assert report["operations"][name]["available"] is built, name
        assert report["controllers"].get(name, {"available": built})["available"] is built, name
    assert "lo" in report["interfaces"]
    assert report["cores"] >= 1


def test_check_build_survives_what_crashes_and_tells_a_broken_core(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = {
        "core": "raise ImportError('it is broken')",
        "mpi": "import os; os.abort()",
        "cipher": "import sys; sys.exit('no library')",
        "direct": "print('yes')",
    }
    monkeypatch.setattr(check_build, "_PROBES", probes)
    report = check_build.build_report()
    said = report.text(verbose=True)
    assert not report.working
    assert "[ ] Gloo  (horovod._core: ImportError: it is broken)" in said
    assert "[ ] MPI  (cannot be loaded: loading it ended with signal 6: without a word)" in said
    assert "[ ] PyTorch" in said
    assert "[ ] Direct copies" in said
    assert "[ ] TCP with encryption  (no library)" in said


def test_mpi4py_without_a_library_is_no_mpi_for_anybody(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: pass\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    program += """
from horovod.common import util
from horovod.common.basics import HorovodBasics
from horovod.launch.check_build import build_report
groups = build_report().groups.values()
rows = [check.available for checks in groups for check in checks if check.name == "MPI"]
print(util.mpi_built(), HorovodBasics().mpi_built(), *rows)
"""
    done = subprocess.run(
        [PYTHON, "-c", program], env=environment(), capture_output=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout == b"False False False False\n"


def test_devices_are_listed_with_the_way_of_their_tensors() -> None:
    fakes = vendor.environment(FAKE_CUDA_DEVICES=2, FAKE_CUDA_PEERS=0)
    extra = {name: fakes[name] for name in ("LD_LIBRARY_PATH", "FAKE_CUDA_DEVICES", "FAKE_CUDA_PEERS")}
    done = horovodrun("--check-build", "--verbose", extra=extra)
    text = done.stdout.decode()
    assert "\nDevices:\n    0  Fake device 0, " in text
    assert "\n    1  Fake device 1, " in text
    assert "\n    peer access: no device reaches another's memory\n" in text
    assert "\n    tensors in device memory: " in text
    report = json.loads(horovodrun("--check-build", "--json", extra=extra).stdout)
    assert [device["name"] for device in report["devices"]] == ["Fake device 0", "Fake device 1"]
    assert f"\n    tensors in device memory: {report['device_support']['way']}\n" in text


@pytest.mark.parametrize("verbose", [False, True])
def test_check_build_lists_its_rows_in_order(verbose: bool) -> None:
    done = horovodrun("--check-build", *(["--verbose"] if verbose else []))
    text = done.stdout.decode()
    assert done.returncode == 0
    assert text.startswith("\nHorovod v0.28.1:" if verbose else "Horovod v0.28.1:")
    assert f"Farandole {importlib.metadata.version('farandole')}\n" in text
    assert f"    [X] PyTorch  {importlib.metadata.version('torch')}" in text
    assert "\nDevices:\n    " in text
    rows = [line.split("] ")[1].split("  ")[0] for line in text.splitlines() if line.startswith("    [")]
    assert rows[:10] == ["TensorFlow", "PyTorch", "MXNet", "MPI", "Gloo", "NCCL", "DDL", "CCL", "MPI", "Gloo"]
    assert rows[10:] == ["Shared memory", "Direct copies", "TCP", "TCP with encryption"]
    rows = [line for line in text.splitlines() if line.startswith("    [")]
    assert any("(" in row for row in rows) is verbose
