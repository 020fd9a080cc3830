"""``import horovod.arrays as hvd``: collectives over arrays of NumPy, CuPy, Numba and others."""

from __future__ import annotations

import typing

from horovod.arrays import functions as functions
from horovod.arrays import mpi_ops as mpi_ops
from horovod.arrays.compression import Compression as Compression
from horovod.arrays.functions import *  # noqa: F403  (republished)
from horovod.arrays.mpi_ops import *  # noqa: F403  (republished)
from horovod.errors import HorovodInternalError as HorovodInternalError

if not typing.TYPE_CHECKING:  # type checkers follow the imports; a computed list hides names from some
    __all__ = ["Compression", "HorovodInternalError"]
    __all__ += functions.__all__
    __all__ += mpi_ops.__all__
    __all__.remove("is_homogeneous")
    del is_homogeneous  # noqa: F821
