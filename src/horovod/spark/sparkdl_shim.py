"""The names of ``sparkdl`` for notebooks that import them: ``from sparkdl import HorovodRunner``.

On request only, and only where there is no ``sparkdl``: `install` adds a finder behind all others, so a
package of that name that is installed is always found first.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

__all__ = ["install", "is_installed", "uninstall"]

# Module of theirs -> names in it, and where ours are.
_MODULES: dict[str, dict[str, str]] = {
    "sparkdl": {"HorovodRunner": "horovod.spark.runner"},
    "sparkdl.horovod": {"log_to_driver": "horovod.spark.log"},
    "sparkdl.horovod.runner_base": {"HorovodRunner": "horovod.spark.runner"},
    "sparkdl.horovod.tensorflow": {},
    "sparkdl.horovod.tensorflow.keras": {"LogCallback": "horovod.spark.tensorflow.keras"},
}


def install() -> None:
    """From now on this process, and ranks of a ``HorovodRunner``, can import ``sparkdl``. Idempotent."""
    if not is_installed():
        sys.meta_path.append(_FINDER)


def uninstall() -> None:
    """Undo `install`; what has been imported stays."""
    if is_installed():
        sys.meta_path.remove(_FINDER)


def is_installed() -> bool:
    """Return whether `install` was called in this process."""
    return _FINDER in sys.meta_path


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        above = sys.modules.get(fullname.rpartition(".")[0])
        # A part that a real sparkdl does not have is not ours to add.
        if fullname not in _MODULES or (above is not None and getattr(above, "__loader__", None) is not self):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        names = _MODULES[module.__name__]

        def find(name: str) -> object:
            if name not in names:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(import_module(names[name]), name)

        vars(module).update(__getattr__=find, __all__=sorted(names), __doc__=__doc__)


_FINDER = _Finder()
