"""Data-parallel training for today's frameworks, under the interface of Horovod.

Import a frontend: ``import horovod.torch as hvd``. This package imports nothing itself, so that a launcher
or a script that only asks for the version does not pay for a framework.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.launch.calls.functions import run

__all__ = ["__version__", "run"]

# The interface version that scripts compare with; the version of the distribution is in its metadata.
__version__ = "0.28.1"


def __getattr__(name: str) -> Any:
    if name == "run":
        from horovod.launch.calls.functions import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
