"""Starting a Python of ours for a part of a job.

The folder that it starts in, and those of the user's script, may have a ``types.py`` or a ``logging.py``. A
plain ``python -m`` would take these for the modules of Python and fail before it has begun; ``-I`` would take
away ``PYTHONPATH`` and the user's packages, too. So the start looks for modules in Python's own folders
first, and never in the current one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

__all__ = ["PATH_VARIABLE", "as_here", "module_words", "program_words", "take_path"]

PATH_VARIABLE = "HOROVOD_CALL_PATH"
"""Import path of another process, its ``sys.path``, for one that is to import the same."""

# One line, as some launchers take words of one line only. `s`: Python's own folders; `g`: those given; `o`:
# the others.
_FIND = (
    "import os,sys;"
    "l=os.path.dirname(os.__file__);s=[l,os.path.join(l,'lib-dynload')];"
    f"g=os.environ.get('{PATH_VARIABLE}','').split(os.pathsep);"
    "o=[p for p in sys.path if p];"
    "sys.path[:]=dict.fromkeys([p for p in o if p in s]+[p for p in g+o if p and p not in s]);"
)


def module_words(module: str, *, top: str = "") -> tuple[str, ...]:
    """Arguments of the interpreter for a command that runs a module as ``python -m`` does. ``top``: a folder
    where the module is found if it is nowhere else.
    """
    further = f"sys.path.append({top!r});" if top else ""
    run = f"import runpy;runpy.run_module({module!r},run_name='__main__',alter_sys=True)"
    return "-c", f"{_FIND}{further}{run}"


def program_words(text: str) -> tuple[str, ...]:
    """The same for a program of these lines."""
    return "-c", f"{_FIND}\n{text}"


def as_here(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which such a process imports what this one can."""
    return {**environ, PATH_VARIABLE: os.pathsep.join(path for path in sys.path if path)}


def take_path() -> None:
    """Let this process, which was started so, import from now on what the one that has started it can, and
    from the current folder: as if both had been started in the same way. Children inherit that.
    """
    given = [path for path in os.environ.pop(PATH_VARIABLE, "").split(os.pathsep) if path]
    if given:
        os.environ["PYTHONPATH"] = os.pathsep.join(given)
    current = [] if getattr(sys.flags, "safe_path", False) else [""]
    sys.path[:] = dict.fromkeys([*current, *given, *sys.path])
