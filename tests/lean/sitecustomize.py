"""Python imports this at its start where this folder is on ``PYTHONPATH``: in processes that tests start.

TensorFlow and Keras import further packages if they are installed, and take twice as long to start then. Here
they do not find those that no test needs through them. Others who ask for one of these find it.

PyTorch imports its compiler when a process makes its first optimizer, to hide that from it: 0.9 s, for 800
modules. Here it hides optimizers only in processes that import the compiler themselves.

Python looks for cycles of garbage while a framework is imported, and several times over all objects at its
end: a quarter of what a process that does nothing with PyTorch takes. Here it looks less often, and not at
the end.
``FARANDOLE_WHOLE_END`` in the environment leaves the end as it is: for tests that are about it.

``tests/conftest.py`` puts this folder on the path, but not in ``make test-all``.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

TYPE_CHECKING = False  # of `typing`, which processes of tests shall not import just because of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_TABLES = frozenset({"matplotlib", "pandas", "scipy", "sklearn"})
HIDDEN = {"tensorflow": _TABLES | {"jax"}, "keras": _TABLES | {"jax"}}
"""Package that imports -> packages that it does not find; but Keras finds its backend."""

_IMPORTING = ("importlib", "_frozen_importlib")  # the second until somebody has imported the first


class Hiding:
    """Finds nothing itself, and ends the search for what is hidden from the importer."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        frame = sys._getframe(1)
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_IMPORTING):
            frame = frame.f_back
        importer = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name in HIDDEN.get(importer, ()) and not (
            importer == "keras" and name == os.environ.get("KERAS_BACKEND")
        ):
            raise ModuleNotFoundError(f"{name} is hidden from {importer} by tests/lean", name=name)
        return None


class Uncompiled:
    """While nobody has imported PyTorch's compiler, nothing is hidden from it."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch._compile":
            return None
        from importlib.machinery import PathFinder

        if (spec := PathFinder.find_spec(name, path)) is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                module._disable_dynamo = _unless_imported(module._disable_dynamo)  # type: ignore[attr-defined]

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _unless_imported(disable: Callable[..., Any]) -> Callable[..., Any]:
    import functools  # here: most processes need none

    def disabled(function: Callable[..., Any] | None = None, recursive: bool = True) -> Callable[..., Any]:
        if function is None:
            return functools.partial(disabled, recursive=recursive)
        hidden = disable(function, recursive)

        @functools.wraps(hidden)
        def called(*args: Any, **keywords: Any) -> Any:
            return (hidden if "torch._dynamo" in sys.modules else function)(*args, **keywords)

        return called

    return disabled


sys.meta_path[:0] = [Hiding(), Uncompiled()]

gc.set_threshold(300_000, 20, 20)
if "FARANDOLE_WHOLE_END" not in os.environ:
    atexit.register(gc.freeze)  # the first to be registered is the last that is called
