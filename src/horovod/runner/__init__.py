"""Compatibility names: ``run``, the console script, parts for launchers of one's own. See `horovod.launch`.

``run`` is looked up when it is asked for: the launcher's own start pays for no serialiser.
"""

from typing import TYPE_CHECKING, Any

import horovod

if TYPE_CHECKING:
    from horovod.launch.calls.functions import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name == "run":
        return horovod.run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
