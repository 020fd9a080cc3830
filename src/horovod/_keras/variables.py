"""Making variables and small values equal on all ranks. It happens rarely, so it goes through NumPy, which
works for the variables of every framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from horovod.collectives import objects
from horovod.collectives.numpy_frontend import collectives
from horovod.errors import HorovodInternalError
from horovod.gradients.replicas import broadcasts, references
from horovod.gradients.variables import kept_apart
from horovod.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "agree",
    "all_variables",
    "allgather_object",
    "averages",
    "broadcast_arrays",
    "broadcast_object",
    "broadcast_variables",
]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the ``obj`` of ``root_rank``: itself there, a fresh copy elsewhere.

    Raises:
        ValueError: ``init()`` has not been called.
    """
    return objects.broadcast_object(collectives, obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return every rank's ``obj`` in rank order."""
    return objects.allgather_object(collectives, obj, name)


def agree(what: str, mine: Any) -> None:
    """Check that ``mine`` is the same on all ranks, before ranks with different lists wait for each other.

    Raises:
        HorovodInternalError: on every rank, if ``mine`` differs between ranks.
    """
    everybody = allgather_object(mine, name=f"keras.{what}")
    for rank, other in enumerate(everybody):
        if other != everybody[0]:
            raise HorovodInternalError(
                f"The ranks do not have the same {what}: rank 0 has {_shown(everybody[0], other)}, rank "
                f"{rank} has {_shown(other, everybody[0])}. Give all ranks the same model, metrics and "
                "callbacks."
            )


def _shown(mine: Any, other: Any) -> str:
    """``mine`` as text; of a long list only what is not in ``other``."""
    if isinstance(mine, list) and isinstance(other, list) and len(mine) > 20:
        return f"{len(mine)}, of these {[each for each in mine if each not in other][:10]} alone"
    return str(mine)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Assign the values of ``root_rank`` to ``variables``: of Keras, TensorFlow or a mixture, in the same
    order on all ranks. The sums of ``backward_passes_per_step`` stay those of each rank.

    Raises:
        HorovodInternalError: number, shapes or dtypes differ between ranks; a rank was lost.
        ValueError: ``init()`` has not been called.
    """
    listed = [variable for variable in variables if not kept_apart(variable)]
    arrays = [np.array(variable.numpy(), order="C") for variable in listed]
    broadcast_arrays(arrays, root_rank, process_set)
    for variable, array in zip(listed, arrays, strict=True):
        variable.assign(array)
    broadcasts.note(references(listed))


def broadcast_arrays(
    arrays: Sequence[np.ndarray[Any, Any]], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite ``arrays``, contiguous and in the same order on all ranks, with those of ``root_rank``.

    Raises:
        HorovodInternalError: number, shapes or dtypes differ between ranks; a rank was lost.
        ValueError: ``init()`` has not been called.
    """
    if process_set is global_process_set:
        agree("variables", [(array.dtype.name, array.shape) for array in arrays])
    handles = [
        # As bytes: the core need not know the dtypes of Keras, and a broadcast does not look at them.
        collectives.broadcast(data, data, root_rank, f"keras.variable.{number}", process_set)
        for number, data in enumerate(array.reshape(-1).view(np.uint8) for array in arrays)
        if data.size
    ]
    collectives.synchronize_all(handles)


def averages(values: Sequence[float], name: str) -> list[float]:
    """The mean over the ranks of each of ``values``."""
    array = np.array(values, np.float64)
    collectives.synchronize(collectives.allreduce(array, array, name, 0))
    result: list[float] = array.tolist()
    return result


def all_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of any generation of Keras."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
