"""Who may include or import whom: the arrows of docs/architecture.md, checked on the sources' text."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.repo.imports import PACKAGE, files, imported

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core"

# Folder of core/ -> what it may include besides itself. "" is core/ itself: types and result.
CORE_ARROWS = {
    "": set[str](),
    "transport": {""},
    "kernels": {""},
    "memory": {""},
    "devices": {"memory", ""},
    "backends": {"transport", "kernels", "memory", "devices", ""},
    "collectives": {"backends", "transport", "kernels", ""},
    "engine": {"collectives", "backends", "transport", "kernels", "memory", "devices", ""},
    "bindings": {"engine", "collectives", "backends", "transport", "kernels", "memory", "devices", ""},
    "glue": {"bindings", ""},
}
# Room of core/engine/ -> what other rooms it may include. "" is core/engine/ itself.
ENGINE_ARROWS = {
    "base": set[str](),
    "timeline": {"base"},
    "control": {"timeline", "base"},
    "execution": {"control", "timeline", "base"},
    "failure": {"execution", "control", "timeline", "base"},
    "fast_path": {"failure", "execution", "control", "timeline", "base"},
    "": {"fast_path", "failure", "execution", "control", "timeline", "base"},
}
# A collective works with any backend: it sees the contract only.
BACKEND_CONTRACT = {
    "backends/backend.h",
    "backends/algorithms/transfers.h",
    "backends/buffers/piece_array.h",
    "backends/operation.h",
}
# Room of core/backends/ -> what other rooms it may include.
BACKEND_ARROWS = {
    "backends": set[str](),
    "backends/buffers": {"backends"},
    "backends/algorithms": {"backends", "backends/buffers"},
}
# Every other room is a backend. None knows another one: the registry does.
OF_A_BACKEND = {"backends", "backends/buffers", "backends/algorithms"}
# What ties the rooms together, and may include any of them.
BACKEND_WIRING = {"backends/backend.cpp", "backends/registry.cpp"}

NEUTRAL = {"runtime", "collectives", "gradients"}
FRAMEWORKS = {"arrays", "torch", "tensorflow", "keras", "jax", "mxnet"}
EVERYBODY = {"errors", "config", "requirements", "wordings"}
# First name below horovod -> what it may import besides itself and `EVERYBODY`.
PYTHON_ARROWS = {
    "errors": set[str](),
    "wordings": set[str](),
    "version": set[str](),
    "requirements": set[str](),
    "config": set[str](),
    "_core": set[str](),
    "bootstrap": {"_core"},
    "devices": {"bootstrap"},
    "backends": {"bootstrap", "_core"},
    "runtime": {"backends", "bootstrap", "devices", "_core"},
    "collectives": {"runtime", "_core"},
    "gradients": {"collectives", "runtime", "_core"},
    **dict.fromkeys(FRAMEWORKS, NEUTRAL | {"common", "data", "elastic", "_core", "_keras"}),
    "arrays": NEUTRAL | {"common", "_core"},
    # What `horovod.keras` and `horovod.tensorflow.keras` share; frameworks bring adapters to it.
    # JAX has no package: its arrays go as those of NumPy.
    "_keras": NEUTRAL | {"common", "elastic", "arrays"},
    "data": {"runtime", "bootstrap"},
    "elastic": {"runtime", "bootstrap"},
    # Of the runtime the launcher needs how scripts end.
    "launch": {"version", "bootstrap", "runtime", "devices"},
    "observe": {"runtime"},
    # A program on top of everything: it measures what users call.
    "bench": {"torch", "observe", "launch", "bootstrap"},
    # A script as users write it.
    "demo": {"torch", "observe"},
    # Compatibility names: thin files over the parts that do the work.
    "common": NEUTRAL | {"_core", "backends", "bootstrap", "devices", "elastic"},
    "runner": {"launch", "common", "bootstrap"},
    # Estimators train with all of the frameworks.
    "spark": {"launch", "common", "runtime", "bootstrap", "data", "tensorflow", "keras", "torch"},
    "ray": {"launch", "runner", "runtime", "bootstrap"},
    # The package itself offers run() and __version__.
    "": {"launch", "version"},
}

# Folder of the package -> its own rooms (folders and modules), each with what it may import of them. A room
# imports only rooms listed before it, so there is no circle. "" is the folder's `__init__`.
ROOM_ARROWS: dict[str, dict[str, set[str]]] = {
    "spark": {
        "conf": set(),
        "sparkdl_shim": set(),
        "log": set(),
        # A job in Spark tasks, from the body of a task to the functions that users call.
        "task": set(),
        "stage": {"task"},
        "calls": {"stage"},
        "runner": {"log", "sparkdl_shim", "stage", "calls"},
        "tensorflow": {"log", "stage", "calls"},
        # Estimators.
        "data_loaders": set(),
        "common": {"task", "stage", "calls"},
        "keras": {"common"},
        "torch": {"common", "data_loaders"},
        "lightning": {"common", "data_loaders", "torch"},
        "": {"calls", "runner"},
    },
    "ray": {
        "ray_logger": set(),
        "checks": set(),
        "nodes": set(),
        "settings": {"checks"},
        "coordinator": {"settings"},
        "worker": {"ray_logger"},
        "utils": {"nodes", "worker"},
        "failures": {"nodes"},
        "messages": {"checks", "nodes", "failures"},
        "strategy": {"nodes", "worker", "failures"},
        "adapter": {"checks", "worker"},
        "static": {
            "checks", "nodes", "coordinator", "worker", "failures", "messages", "strategy", "adapter",
        },
        "elastic_actors": {"ray_logger", "worker"},
        "fleet": {"nodes", "elastic_actors"},
        "elastic_v2": {"checks", "nodes", "coordinator", "worker", "messages", "adapter", "fleet"},
        "elastic": {"nodes", "settings", "elastic_v2"},
        "runner": {"nodes", "settings", "coordinator", "worker", "adapter", "static", "elastic_v2"},
        "train": {"checks", "nodes", "settings", "coordinator", "worker", "failures"},
        "tune": {"ray_logger", "checks", "failures", "runner"},
        "": {"elastic", "runner"},
    },
}  # fmt: skip

# Rooms of bootstrap, each of which imports only those before it.
BOOTSTRAP_ROOMS = ("trust", "place", "network", "store", "mesh")


def includes() -> Iterator[tuple[Path, str]]:
    """(file, text between the quotes) of every `#include "..."` in core/."""
    for file in sorted(CORE.rglob("*")):
        if file.suffix in {".h", ".cpp", ".inl"}:
            for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(), re.MULTILINE):
                yield file.relative_to(CORE), target


def folder(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else ""


def test_every_room_of_the_core_and_of_the_engine_has_its_arrows() -> None:
    folders = {folder(file) for file, _ in includes()}
    assert folders <= CORE_ARROWS.keys(), "say in CORE_ARROWS what the new folder may include"
    rooms = {room(file) for file, _ in includes() if folder(file) == "engine"}
    assert rooms <= ENGINE_ARROWS.keys(), "say in ENGINE_ARROWS what the new room may include"


def test_core_includes_point_only_downwards() -> None:
    wrong = [
        f"{file} includes {target}"
        for file, target in includes()
        if folder(Path(target)) not in CORE_ARROWS.get(folder(file), set()) | {folder(file)}
    ]
    assert wrong == []


def room(path: Path) -> str:
    return path.parts[1] if len(path.parts) > 2 else ""


def test_rooms_of_the_engine_include_only_downwards() -> None:
    wrong = [
        f"{file} includes {target}"
        for file, target in includes()
        if folder(file) == folder(Path(target)) == "engine"
        and room(Path(target)) not in ENGINE_ARROWS.get(room(file), set()) | {room(file)}
    ]
    assert wrong == []


def test_core_includes_name_files_from_the_root_of_core() -> None:
    assert [f"{file}: {target}" for file, target in includes() if not (CORE / target).is_file()] == []


def test_collectives_see_only_the_contract_of_backends() -> None:
    wrong = [
        f"{file} includes {target}"
        for file, target in includes()
        if folder(file) == "collectives" and target.startswith("backends/") and target not in BACKEND_CONTRACT
    ]
    assert wrong == []


def test_nobody_but_the_registry_includes_a_backend() -> None:
    wrong = [
        f"{file} includes {target}"
        for file, target in includes()
        if folder(file) != "backends"
        and folder(Path(target)) == "backends"
        and str(Path(target).parent) not in OF_A_BACKEND
    ]
    assert wrong == [], "name what is needed in the contract: core/backends/backend.h, device_backend.h"


def test_rooms_of_the_backends_include_only_downwards() -> None:
    wrong = [
        f"{file} includes {target}"
        for file, target in includes()
        if folder(file) == folder(Path(target)) == "backends"
        and str(file) not in BACKEND_WIRING
        and str(Path(target).parent)
        not in BACKEND_ARROWS.get(str(file.parent), OF_A_BACKEND) | {str(file.parent)}
    ]
    assert wrong == []


def test_core_includes_no_python_outside_bindings_and_no_framework() -> None:
    foreign = re.compile(r"^\s*#\s*include\s+<((?:torch|ATen|c10|tensorflow|xla|mxnet|mpi|nccl|cuda)[^>]*)>")
    python = re.compile(r"^\s*#\s*include\s+<((?:Python\.h|nanobind/)[^>]*)>")
    files = sorted(CORE.rglob("*.[hci]*"))
    assert {folder(file.relative_to(CORE)) for file in files} >= {"bindings", "engine", "transport"}
    for file in files:
        for line in file.read_text().splitlines():
            assert not foreign.match(line), f"{file.relative_to(ROOT)}: {line}"
            if folder(file.relative_to(CORE)) != "bindings":
                assert not python.match(line), f"{file.relative_to(ROOT)}: {line}"


def part(name: str) -> str:
    """First name below horovod: "torch" of horovod.torch.mpi_ops, "" of horovod itself."""
    below = name.split(".")[1:]
    return below[0] if below and below[0] != "run" else ""


def part_of(file: Path) -> str:
    first = file.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_python_imports_point_only_downwards(file: Path) -> None:
    mine = part_of(file)
    assert mine in PYTHON_ARROWS, f"say in PYTHON_ARROWS what horovod.{mine} may import"
    allowed = PYTHON_ARROWS[mine] | EVERYBODY | {mine, ""}
    wrong = [name for name in imported(file) if name.split(".")[0] == "horovod" and part(name) not in allowed]
    assert wrong == []


def test_rooms_of_bootstrap_import_only_those_before_them() -> None:
    wrong = []
    for number, name in enumerate(BOOTSTRAP_ROOMS):
        for file in sorted((PACKAGE / "bootstrap" / name).glob("*.py")):
            rooms = [each.split(".")[2] for each in imported(file) if each.startswith("horovod.bootstrap.")]
            wrong += [
                f"{name}/{file.name}: {each}" for each in rooms if each in BOOTSTRAP_ROOMS[number + 1 :]
            ]
    assert wrong == []
    assert {
        each.name for each in (PACKAGE / "bootstrap").iterdir() if (each / "__init__.py").exists()
    } == set(BOOTSTRAP_ROOMS)


@pytest.mark.parametrize("name", ROOM_ARROWS)
def test_rooms_of_a_folder_import_only_what_is_listed(name: str) -> None:
    arrows = ROOM_ARROWS[name]
    rooms = list(arrows)
    assert [(room, to) for room in rooms for to in arrows[room] if rooms.index(to) >= rooms.index(room)] == []
    found, wrong = set(), []
    for file in sorted((PACKAGE / name).rglob("*.py")):
        own = file.relative_to(PACKAGE / name).parts[0].removesuffix(".py")
        mine = "" if own == "__init__" else own
        found.add(mine)
        others = {each.split(".")[2] for each in imported(file) if each.startswith(f"horovod.{name}.")}
        wrong += [
            f"{file.relative_to(PACKAGE)}: {each}" for each in others - arrows.get(mine, set()) - {mine}
        ]
    assert wrong == []
    assert found == set(rooms), "say in ROOM_ARROWS what the new room may import"


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_only_the_folder_of_a_framework_imports_it(file: Path) -> None:
    through = {
        "_keras": {"keras", "jax"},
        "bench": {"torch"},
        "demo": {"torch"},
        "spark": {"tensorflow", "keras", "torch", "jax"},
    }
    allowed = {part_of(file)} | through.get(part_of(file), set())
    wrong = [name for name in imported(file) if name.split(".")[0] in FRAMEWORKS - allowed]
    assert wrong == []
