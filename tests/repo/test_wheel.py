"""What a wheel holds: one native module that depends on the C library only, and no framework."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 420.0
C_LIBRARY = re.compile(r"^(libc|libm|libpthread|libdl|librt|ld-linux[-\w]*)\.so\.\d+$")
FOREIGN_SYMBOL = re.compile(
    r"^(_ZN[KVR]*(2at|3c10|5torch|10tensorflow|5rueda|3xla|5mxnet|3tsl)|TF_|TFE_|MPI_|ompi_|nccl|cuda|cu[A-Z]|hip|Xla)"
)
CXX_RUNTIME_SYMBOL = re.compile(r"^(_ZSt|_ZNSt|_ZNKSt|_ZTVN10__cxxabiv|__cxa_throw|__gxx_personality)")

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    # Beside the folder of `make build`: a cache of compiled objects, where there is one, knows most of them.
    place = f"--config-settings=build-dir={ROOT / 'build' / 'wheel'}"
    done = subprocess.run(
        [*command, place, "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("rueda-*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def binaries(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("unzipped")
    wheel.extractall(folder)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    found = [file for file in files if file.read_bytes()[:4] == b"\x7fELF"]
    assert found
    return found


def symbols(binary: Path, which: str) -> list[str]:
    tool = shutil.which("nm")
    assert tool, "nm is part of binutils, which every C++ compiler brings"
    listing = subprocess.run([tool, "-D", which, str(binary)], capture_output=True, text=True, check=True)
    return [line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()]


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
    assert [name for name in names if not name.startswith(("horovod/", "rueda-"))] == []


def test_package_requires_no_framework(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    lines = wheel.read(metadata).decode().splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert sorted(required) == ["Requires-Dist: cloudpickle", "Requires-Dist: pyyaml"]


def test_binaries_need_only_the_c_library(binaries: list[Path]) -> None:
    tool = shutil.which("readelf")
    assert tool, "readelf is part of binutils, which every C++ compiler brings"
    for binary in binaries:
        header = subprocess.run([tool, "-d", str(binary)], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", header)
        assert [library for library in needed if not C_LIBRARY.match(library)] == []
        assert "RUNPATH" not in header
        assert "RPATH" not in header


def test_binaries_ask_for_no_symbol_of_a_framework_or_of_a_cxx_runtime(binaries: list[Path]) -> None:
    for binary in binaries:
        undefined = symbols(binary, "--undefined-only")
        assert [name for name in undefined if FOREIGN_SYMBOL.match(name)] == []
        assert [name for name in undefined if CXX_RUNTIME_SYMBOL.match(name)] == []


def test_binaries_show_nothing_but_their_entry_points(binaries: list[Path]) -> None:
    shown = {binary.name.split(".")[0]: sorted(symbols(binary, "--defined-only")) for binary in binaries}
    assert shown == {
        "_core": ["PyInit__core"],
        "_tensorflow": ["rueda_tf_enter", "rueda_tf_leave", "rueda_tf_problem"],
    }
