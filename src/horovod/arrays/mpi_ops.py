"""The collectives of ``horovod.arrays``, over arrays of NumPy, CuPy, Numba and others.

Of every collective there are up to four forms: ``x`` blocks and returns new arrays; ``x_`` blocks and works
in place; ``x_async`` and ``x_async_`` return a handle for :func:`poll` and :func:`synchronize`. An array must
not be modified, and a result not be read, between submission and ``synchronize``.

All raise ``ValueError`` for what is wrong on this rank alone (no ``init()``, dtype, layout, a name in flight,
a root that does not exist) and ``HorovodInternalError`` for what fails between ranks, at the latest in
``synchronize``.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from horovod.arrays import collectives as _files
from horovod.arrays.collectives.allgather import *  # noqa: F403  (republished)
from horovod.arrays.collectives.allreduce import *  # noqa: F403  (republished)
from horovod.arrays.collectives.alltoall import *  # noqa: F403  (republished)
from horovod.arrays.collectives.broadcast import *  # noqa: F403  (republished)
from horovod.arrays.collectives.reduce import *  # noqa: F403  (republished)
from horovod.arrays.collectives.reducescatter import *  # noqa: F403  (republished)
from horovod.arrays.frontend import collectives
from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers follow the imports; a computed list hides names from some
    __all__ = ["barrier", "join", "poll", "synchronize"]
    __all__ += everywhere.__all__
    __all__ += _files.allgather.__all__
    __all__ += _files.allreduce.__all__
    __all__ += _files.alltoall.__all__
    __all__ += _files.broadcast.__all__
    __all__ += _files.reduce.__all__
    __all__ += _files.reducescatter.__all__

barrier = collectives.barrier
join = collectives.join
poll = collectives.poll
synchronize = collectives.synchronize

atexit.register(collectives.table.forget)  # frees the engine of the last world
