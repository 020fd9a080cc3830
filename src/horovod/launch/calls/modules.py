"""The modules beside a script or notebook, as source text that travels with a function.

Another host, or a process in another folder, cannot import what only the launching process finds: a module in
the script's own folder, one that a notebook's kernel put on its path. Their sources are sent along, and the
workers import them from there, under their own names: so classes are the same ones on both ends, unlike
those that are pickled by value.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

__all__ = ["ModuleSource", "SourcesFinder", "install_sources", "local_sources"]

# What belongs to this process, or to this machine.
_NOT_SHIPPED = {"__main__", "__mp_main__", "sitecustomize", "usercustomize"}
# What every host of a job has by itself, wherever it was put: Spark finds its own by a variable.
_EVERYWHERE = {"horovod", "pyspark", "py4j"}
_MOST_NEIGHBOURS = 1000
_MOST_NEIGHBOUR_BYTES = 16 << 20


@dataclass(frozen=True)
class ModuleSource:
    """A module: its text, whether it is a package, and the file it was read from ("" for a namespace)."""

    text: str
    package: bool
    path: str


def local_sources() -> dict[str, ModuleSource]:
    """Every module of this process that is not installed, by name, and those beside the main script.

    Loaded modules are all taken. Of those that are not loaded yet, but might be inside a function, the folder
    of the main script is searched (in a notebook: the current folder): its modules and packages, as long as
    they are no more than 1000 files and 16 MiB together.
    """
    found = {}
    installed = _installed_folders()
    for name, module in list(sys.modules.items()):
        if name not in _NOT_SHIPPED and (source := _of_module(name, module, installed)) is not None:
            found[name] = source
    try:
        neighbours = dict(_neighbours(_main_folder(), installed))
    except OSError:
        neighbours = {}  # a folder that cannot be read has nothing to offer
    return {**neighbours, **found}


def _of_module(name: str, module: ModuleType, installed: Set[Path]) -> ModuleSource | None:
    if not isinstance(module, ModuleType) or name.partition(".")[0] in _EVERYWHERE:
        return None
    path = getattr(module, "__file__", None)
    if path is None:
        folders = list(getattr(module, "__path__", ()))
        if folders and not any(_within(Path(folder), installed) for folder in folders):
            return ModuleSource("", True, "")
        return None
    if not path.endswith(".py") or _within(Path(path), installed):
        return None
    try:
        return ModuleSource(_text(Path(path)), hasattr(module, "__path__"), os.path.abspath(path))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None  # its file has gone since


def _text(path: Path) -> str:
    return importlib.util.decode_source(path.read_bytes())


def _neighbours(folder: Path, installed: Set[Path]) -> Iterator[tuple[str, ModuleSource]]:
    """The modules and packages in ``folder``; none if they are too many to be one project."""
    if _within(folder, installed):
        return
    files, total = [], 0
    for name, path in _python_files(folder, ""):
        total += path.stat().st_size
        files.append((name, path))
        if len(files) > _MOST_NEIGHBOURS or total > _MOST_NEIGHBOUR_BYTES:
            return
    for name, path in files:
        try:
            yield name, ModuleSource(_text(path), path.name == "__init__.py", str(path))
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue  # no module of Python's


def _python_files(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for entry in sorted(folder.iterdir()):
        if entry.suffix == ".py" and entry.stem.isidentifier() and entry.is_file():
            yield (prefix.rstrip(".") if entry.stem == "__init__" else prefix + entry.stem), entry
        elif entry.name.isidentifier() and (entry / "__init__.py").is_file() and not entry.is_symlink():
            yield from _python_files(entry, f"{prefix}{entry.name}.")


def _main_folder() -> Path:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()


def _installed_folders() -> set[Path]:
    """The folders of Python and of installed distributions: other hosts have their own."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*getattr(site, "getsitepackages", list)(), site.getusersitepackages()}
    folders |= {folder for folder in sys.path if _has_distributions(folder)}
    return {Path(os.path.abspath(folder)) for folder in folders if folder}


def _within(path: Path, folders: Set[Path]) -> bool:
    """True if ``path`` lies in one of the folders."""
    own = Path(os.path.abspath(path))
    return any(own.is_relative_to(folder) for folder in folders)


def _has_distributions(folder: str) -> bool:
    """True if distributions were installed there, as by ``pip install --target``. A project that is installed
    in editable form has none: it is the user's own.
    """
    try:
        with os.scandir(folder or ".") as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:
        return False  # an archive, or a folder that does not exist


class SourcesFinder(importlib.abc.MetaPathFinder):
    """Imports modules from ``sources``, before any other way: so all ranks run the same text."""

    def __init__(self, sources: Mapping[str, ModuleSource]) -> None:
        self.sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self.sources.get(fullname)
        if source is None:
            return None
        loader = _SourceLoader(source)
        spec = importlib.util.spec_from_loader(
            fullname, loader, origin=source.path, is_package=source.package
        )
        if spec is not None and source.path:
            spec.has_location = True  # sets __file__; data files beside it are found where hosts share them
            if source.package:
                spec.submodule_search_locations = [os.path.dirname(source.path)]
        return spec


class _SourceLoader(importlib.abc.InspectLoader):
    def __init__(self, source: ModuleSource) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source.text

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        # With the original file name, so that tracebacks and debuggers name it.
        return self.source_to_code(self.source.text, self.source.path or "<namespace>")

    def is_package(self, fullname: str) -> bool:
        return self.source.package


def install_sources(sources: Mapping[str, ModuleSource]) -> None:
    """Make ``sources`` importable in this process, in place of files of the same names.

    A process may get sources several times, as the Python workers of Spark do: the last ones count, and
    modules whose text has changed since are imported anew.
    """
    before = [finder for finder in sys.meta_path if isinstance(finder, SourcesFinder)]
    if any(finder.sources == sources for finder in before[:1]):
        return
    for finder in before:
        sys.meta_path.remove(finder)
        for name, source in finder.sources.items():
            if name in sources and sources[name] != source and _came_from(finder, name):
                del sys.modules[name]
    known = {name: source for finder in reversed(before) for name, source in finder.sources.items()}
    sys.meta_path.insert(0, SourcesFinder({**known, **sources}))


def _came_from(finder: SourcesFinder, name: str) -> bool:
    """True if a module has been imported, and from the sources of ``finder``."""
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    return isinstance(loader, _SourceLoader) and loader.source == finder.sources[name]
