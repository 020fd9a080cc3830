"""Backends written in Python: objects that move the bytes of the operations between ranks.

``HOROVOD_CPU_OPERATIONS=module:Class`` chooses one; ``docs/howto/write-a-backend-in-python.md`` shows how to
write one, and `contract.py` says what it may be asked to do. ``mpi.py`` is one, over mpi4py.
"""

from __future__ import annotations

from horovod.backends.contract import Backend, Steps, Verbs
from horovod.backends.registry import load

__all__ = ["Backend", "Steps", "Verbs", "load"]
