"""What a wheel holds: one native module that depends on the C library only, and no framework."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.release import audit
from tools.release.binary import Binary
from tools.release.targets import GLIBC

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 420.0

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    # Beside the folder of `make build`, with its options: a cache of compiled objects, if any, knows most.
    place = f"--config-settings=build-dir={ROOT / 'build' / 'wheel'}"
    options = "--config-settings=cmake.define.FARANDOLE_WERROR=ON"
    # And with its compiler: the build back end would take the one that compiled Python, under another name.
    compiler = {"CXX": "c++"} | os.environ
    done = subprocess.run(
        [*command, place, options, "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        env=compiler,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("farandole-*.whl")
    return file


@pytest.fixture(scope="module")
def wheel(file: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(file) as opened:
        yield opened


def test_wheel_holds_package_native_module_types_licence_and_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    native = sorted(name for name in names if name.endswith(".so"))
    assert len(native) == 2, native
    assert re.fullmatch(r"horovod/_core\..*so", native[0])
    assert native[1] == "horovod/tensorflow/_tensorflow.so"
    assert {"horovod/__init__.py", "horovod/py.typed", "horovod/_core.pyi"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "horovodrun = horovod.runner.launch:run_commandline" in wheel.read(entry_points).decode()
    assert [name for name in names if not name.startswith(("horovod/", "farandole-"))] == []


def test_package_requires_no_framework(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    lines = wheel.read(metadata).decode().splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert sorted(required) == ["Requires-Dist: cloudpickle", "Requires-Dist: pyyaml"]


def test_rules_of_releases_hold(file: Path) -> None:
    """Small; binaries need and want the C library only, and show their entry points only; tags are true."""
    assert audit.problems(file) == []


def changed(file: Path, folder: Path, name: str, other: str) -> Path:
    """The wheel with the file ``other`` of this machine under the name of one of its own."""
    copy = folder / file.name
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            ours = not re.fullmatch(name, entry)
            new.writestr(entry, old.read(entry) if ours else Path(other).read_bytes())
    return copy


@pytest.mark.parametrize(
    "said",
    [
        r"_core.* needs \['libtorch_python\.so'.*\]; only the C library may be needed",
        r"_core.* wants \[.*'_ZNSt.*\] of the C\+\+ library, which must be inside",
        r"_core.* shows \[.*'PyInit__core'.*\] more or less than its entry points",
    ],
)
def test_a_module_that_hangs_on_a_framework_is_noticed(file: Path, tmp_path: Path, said: str) -> None:
    import torch

    (binding,) = (Path(torch.__file__).parent / "lib").glob("libtorch_python.so")
    linked = Path(torch._C.__file__ or "")
    other = linked if "needs" in said else binding
    told = audit.problems(changed(file, tmp_path, r"horovod/_core\..*so", str(other)))
    assert any(re.match(said, text) for text in told), told


def test_a_name_that_promises_an_older_c_library_is_noticed(file: Path, tmp_path: Path) -> None:
    """The wheel of this machine is made for the C library of this machine."""
    kind, version = platform.libc_ver()
    assert kind == "glibc"
    renamed = tmp_path / re.sub(r"-linux_", f"-manylinux_{GLIBC[0]}_{GLIBC[1]}_", file.name)
    shutil.copy(file, renamed)
    told = audit.problems(renamed)
    assert any("the name of the wheel says" in text for text in told), told
    newer = [text for text in told if re.match(r"_core\S+ wants \['.*@GLIBC_2\.\d+.*newer than what", text)]
    assert bool(newer) == (tuple(map(int, version.split("."))) > GLIBC), told


def test_a_wheel_for_another_machine_is_noticed(file: Path, tmp_path: Path) -> None:
    renamed = tmp_path / file.name.replace(platform.machine(), "riscv64")
    shutil.copy(file, renamed)
    assert any("and the wheel for linux_riscv64" in text for text in audit.problems(renamed))


def test_a_fat_wheel_is_noticed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = file.stat().st_size
    monkeypatch.setattr(audit, "LIMIT_BYTES", size - 1)
    assert audit.problems(file) == [f"{file.name} takes {size} bytes; {size - 1} are the limit"]


def test_versions_of_symbols_are_compared_as_numbers() -> None:
    """2.4 is older than 2.28. The interpreter of this machine is a binary that is at hand."""
    binary = Binary(Path(sys.executable).resolve())
    assert binary.glibc >= (2, 17)
    assert not any(re.search(r"@GLIBC_2\.[2-9](\.|$)", name) for name in binary.wanted_since(GLIBC))
