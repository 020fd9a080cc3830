"""Data-parallel training for today's frameworks, under the interface of Horovod.

Import a frontend: ``import horovod.torch as hvd``. This package imports nothing else, so that a launcher
or a script that only asks for the version does not pay for a framework.
"""

import sys
from typing import TYPE_CHECKING, Any

from horovod.requirements import ComingModules
from horovod.version import __version__

if TYPE_CHECKING:
    from horovod.launch.calls.functions import run

__all__ = ["__version__", "run"]

sys.meta_path.append(ComingModules)  # last: modules that are there are found before


def __getattr__(name: str) -> Any:
    if name == "run":
        from horovod.launch.calls.functions import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
