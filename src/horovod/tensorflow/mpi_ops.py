"""The collectives of ``horovod.tensorflow``, as ops: in eager mode, in ``tf.function`` and in graphs of
TensorFlow 1 with their sessions.

All raise TensorFlow's errors when they run: ``InvalidArgumentError`` for what is wrong on this rank alone (it
is not in the set, a root that does not exist, splits, a name in flight), ``FailedPreconditionError`` for what
ranks disagree about and before ``init()``, ``UnknownError`` when the world has failed or ended.

In a graph ranks recognise operations by the names of their nodes; in eager mode by ``name``, or else by the
order of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod.common import everywhere
from horovod.common.everywhere import *  # noqa: F403  (republished)
from horovod.common.everywhere import _basics as _basics
from horovod.common.util import check_extension as check_extension
from horovod.common.util import gpu_available as gpu_available
from horovod.gradients.replicas import rewind
from horovod.runtime import lifecycle
from horovod.tensorflow import collectives as _files
from horovod.tensorflow import world_ops
from horovod.tensorflow.collectives.allgather import *  # noqa: F403
from horovod.tensorflow.collectives.allreduce import *  # noqa: F403
from horovod.tensorflow.collectives.allreduce import _allreduce as _allreduce
from horovod.tensorflow.collectives.allreduce import _grouped_allreduce as _grouped_allreduce
from horovod.tensorflow.collectives.alltoall import *  # noqa: F403
from horovod.tensorflow.collectives.broadcast import *  # noqa: F403
from horovod.tensorflow.collectives.reduce import *  # noqa: F403
from horovod.tensorflow.collectives.reducescatter import *  # noqa: F403
from horovod.tensorflow.collectives.reducescatter import _grouped_reducescatter as _grouped_reducescatter
from horovod.tensorflow.collectives.reducescatter import _reducescatter as _reducescatter
from horovod.tensorflow.native import ops
from horovod.tensorflow.world_ops import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers follow the imports; a computed list hides names from some
    __all__ = ["check_extension", "gpu_available", "join"]
    __all__ += everywhere.__all__
    __all__ += world_ops.__all__
    __all__ += _files.allgather.__all__
    __all__ += _files.allreduce.__all__
    __all__ += _files.alltoall.__all__
    __all__ += _files.broadcast.__all__
    __all__ += _files.reduce.__all__
    __all__ += _files.reducescatter.__all__


def join() -> Any:
    """This rank has no more data: wait until every rank has joined. An int32 scalar, the one that was last.

    Meanwhile this rank takes part in the others' allreduces with zeros; averages divide by all ranks. All
    other collectives of the global set fail for the others.
    """
    last = ops.horovod_join()
    if tf.executing_eagerly():
        _note_join()
        return last
    with tf.control_dependencies([tf.numpy_function(lambda _: _note_join(), [last], [])]):
        return tf.identity(last)


def _note_join() -> None:
    lifecycle.current().joins.count += 1
    rewind()
