"""A rank that a launcher of the user's own has started."""

from __future__ import annotations

import sys

import numpy as np

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Sum
from horovod.common.basics import HorovodBasics
from horovod.errors import RendezvousError
from horovod.runtime.process_set import global_process_set

basics = HorovodBasics()
try:
    basics.init()
except RendezvousError as error:
    print(type(error).__name__)
    sys.exit(3)
mine = np.array([basics.rank() + 1.0])
total = collectives.run_allreduce(mine, np.empty_like(mine), None, Sum, 1.0, 1.0, global_process_set)
print(basics.rank(), basics.size(), basics.local_rank(), basics.local_size(), total[0])
basics.shutdown()
