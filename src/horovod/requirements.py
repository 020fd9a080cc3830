"""Requirements of this package's modules that may be missing, and the modules that do not exist yet.

Whoever imports such a module reads one sentence that says what to do. The errors are those that scripts catch
to find out what is installed: ``ImportError``, and ``ModuleNotFoundError`` where something is absent.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import FrameType
from typing import Any, Final

__all__ = ["ComingModules", "require", "require_keras"]

# Name of a framework's module -> what people call it. Its distribution has the name of the module.
_FRAMEWORKS: Final = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "keras": "Keras",
    "pyspark": "PySpark",
    "ray": "Ray",
    "pyarrow": "PyArrow",
}
_CORE: Final = "horovod._core"
_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))

_COMING: Final = {
    "horovod.mxnet": "support of MXNet",
    "horovod.jax": "support of JAX without Keras",
}


def require(frontend: str, framework: str) -> None:
    """Make sure that ``frontend`` (``"horovod.torch"``) can be imported.

    Args:
        framework: the module that it is for.

    Raises:
        ModuleNotFoundError: the framework is not installed.
        ImportError: the native module cannot be loaded; the cause is in the message.
    """
    if not _installed(framework):
        raise ModuleNotFoundError(
            f"{frontend} needs {_FRAMEWORKS[framework]}, which is not installed here. "
            f"Install it: {_install(framework)}",
            name=framework,
        )
    try:
        import_module(_CORE)
    except ImportError as error:
        raise ImportError(f"{frontend} cannot be used: {_why_no_core(error)}", name=_CORE) from error


def require_keras(frontend: str) -> None:
    """:func:`require` of Keras, with the framework that Keras computes with.

    Raises:
        ModuleNotFoundError: one of the two is not installed.
        ImportError: see :func:`require`.
    """
    require(frontend, "keras")
    try:
        import_module("keras")
    except ModuleNotFoundError as error:
        chosen = error.name or ""
        if chosen not in _FRAMEWORKS:
            raise
        there = [name for name in ("torch", "tensorflow", "jax") if name != chosen and _installed(name)]
        instead = f". Or choose what is installed: KERAS_BACKEND={there[0]}" if there else ""
        raise ModuleNotFoundError(
            f"{frontend}: Keras is to compute with {_FRAMEWORKS[chosen]}, which is not installed here. "
            f"Install it: {_install(chosen)}{instead}",
            name=chosen,
        ) from error


class ComingModules:
    """The last of ``sys.meta_path``: it says of modules that do not exist yet what there is instead."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Never finds anything.

        Raises:
            ModuleNotFoundError: an import asks. Who only asks whether there is such a module
                (``importlib.util.find_spec``) hears as of any other that there is none.
        """
        coming = _COMING.get(name)
        if coming is None or not _is_import():
            return
        raise ModuleNotFoundError(_to_come(name, coming), name=None if _is_from_import() else name)


def _is_import() -> bool:
    """Return whether an import asks the finder, and not a search: a function of the import system calls the
    finder for both, and only the caller of that function tells them apart.
    """
    asking = sys._getframe(2).f_back
    return asking is not None and asking.f_code.co_name == "_find_and_load_unlocked"


def _is_from_import() -> bool:
    """Return whether ``from horovod import spark`` asks. That statement swallows an error with the name of
    the module, and says "cannot import name" in its place.
    """
    asking: FrameType | None = sys._getframe(3)
    while asking is not None and asking.f_code.co_filename.startswith("<frozen importlib"):
        if asking.f_code.co_name == "_handle_fromlist":
            return True
        asking = asking.f_back
    return False


def _to_come(name: str, coming: str) -> str:
    return (
        f"{name} does not exist yet: {coming} is to come. There are horovod.torch, horovod.tensorflow, "
        "horovod.keras and horovod.arrays; start their scripts with horovodrun, or functions with "
        "horovod.run()."
    )


def _installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    import importlib.util  # `import horovod` alone does without

    return importlib.util.find_spec(name) is not None


def _install(distribution: str) -> str:
    return f"{sys.executable or 'python'} -m pip install {distribution}"


def _why_no_core(error: ImportError) -> str:
    """The cause and what to try; ``error`` is that of the import."""
    from importlib.machinery import EXTENSION_SUFFIXES

    files = sorted(os.listdir(_FOLDER))
    cause = f"its native module cannot be loaded ({error})."
    if not any(f"_core{suffix}" in files for suffix in EXTENSION_SUFFIXES):
        cause = f"there is no native module _core{EXTENSION_SUFFIXES[0]} in {_FOLDER}."
        others = [name for name in files if name.startswith("_core.") and name.endswith(".so")]
        if others:
            version = ".".join(map(str, sys.version_info[:2]))
            cause += f" What is there is not for this Python {version}: {', '.join(others)}."
    if os.path.exists(os.path.join(_FOLDER, "..", "..", "CMakeLists.txt")):
        return f"{cause} This is a source tree: make the module with `make build`."
    return f"{cause} Install the package again: {_install('--force-reinstall --no-deps farandole')}"
