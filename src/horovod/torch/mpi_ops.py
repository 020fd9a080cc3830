"""The collectives of ``horovod.torch``.

Of every collective there are up to four forms: ``x`` blocks, returns new tensors and takes part in autograd;
``x_`` blocks and works in place; ``x_async`` and ``x_async_`` return a handle for :func:`poll` and
:func:`synchronize`. A tensor must not be modified, and a result not be read, between submission and
``synchronize``.

All raise ``ValueError`` for what is wrong on this rank alone (no ``init()``, dtype, layout, a name in flight,
a root that does not exist) and ``HorovodInternalError`` for what fails between ranks, at the latest in
``synchronize``.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.common.everywhere import _basics as _basics
from horovod.torch import collectives as _files
from horovod.torch.autograd import collectives
from horovod.torch.collectives.allgather import *  # noqa: F403
from horovod.torch.collectives.allgather import HorovodAllgather as HorovodAllgather
from horovod.torch.collectives.allgather import HorovodGroupedAllgather as HorovodGroupedAllgather
from horovod.torch.collectives.allreduce import *  # noqa: F403
from horovod.torch.collectives.allreduce import HorovodAllreduce as HorovodAllreduce
from horovod.torch.collectives.allreduce import HorovodGroupedAllreduce as HorovodGroupedAllreduce
from horovod.torch.collectives.alltoall import *  # noqa: F403
from horovod.torch.collectives.alltoall import HorovodAlltoall as HorovodAlltoall
from horovod.torch.collectives.broadcast import *  # noqa: F403
from horovod.torch.collectives.broadcast import HorovodBroadcast as HorovodBroadcast
from horovod.torch.collectives.reduce import *  # noqa: F403
from horovod.torch.collectives.reducescatter import *  # noqa: F403
from horovod.torch.collectives.reducescatter import HorovodGroupedReducescatter as HorovodGroupedReducescatter
from horovod.torch.collectives.reducescatter import HorovodReducescatter as HorovodReducescatter
from horovod.torch.collectives.sparse_allreduce import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers follow the imports; a computed list hides names from some
    __all__ = ["barrier", "join", "poll", "synchronize"]
    __all__ += everywhere.__all__
    __all__ += _files.allgather.__all__
    __all__ += _files.allreduce.__all__
    __all__ += _files.alltoall.__all__
    __all__ += _files.broadcast.__all__
    __all__ += _files.reduce.__all__
    __all__ += _files.reducescatter.__all__
    __all__ += _files.sparse_allreduce.__all__

barrier = collectives.barrier
join = collectives.join
poll = collectives.poll
synchronize = collectives.synchronize

atexit.register(collectives.table.forget)  # frees the engine of the last world
