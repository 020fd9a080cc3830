"""Allreduce of sparse PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horovod.collectives.ops import Average, checked_op
from horovod.errors import InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count
from horovod.torch.autograd import collectives
from horovod.torch.frontend import not_a_tensor

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a COO tensor, as two allgathers ``<name>.indices`` and ``<name>.values``.

    Ranks may have different numbers of entries, also none.

    Returns:
        A function that waits and returns an uncoalesced COO tensor of the same dense size with the entries of
        all ranks; their values divided by the number of members if ``op`` is ``Average`` (integers are
        truncated), else as they are.

    Raises:
        ValueError: not a COO tensor, a dtype that cannot be gathered, or this rank is not in the set.
        HorovodInternalError: ranks disagree; a rank was lost.
    """
    if op is not None:
        op = checked_op(op)
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(not_a_tensor(tensor))
    if tensor.layout != torch.sparse_coo:
        raise InvalidArgumentError(f"Expected a sparse COO tensor, got layout {tensor.layout}.")
    # Entries are rows of both, so that they can be concatenated. Coalescing first is up to the caller.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().contiguous()
    collectives.frontend.describe(values)  # nothing is submitted if they cannot be
    indices_handle = collectives.allgather(indices, f"{name}.indices", process_set)
    try:
        values_handle = collectives.allgather(values, f"{name}.values", process_set)
    except BaseException:
        collectives.table.abandon([indices_handle])
        raise
    shape = tensor.shape
    divisor = member_count(process_set) if op == Average else 1

    def wait() -> torch.Tensor:
        try:
            all_values: torch.Tensor = collectives.synchronize(values_handle)
        except Exception:
            collectives.table.abandon([indices_handle])
            raise
        all_indices: torch.Tensor = collectives.synchronize(indices_handle)
        if divisor != 1:
            rounding = None if all_values.is_floating_point() else "trunc"
            all_values = torch.div(all_values, divisor, rounding_mode=rounding)
        return torch.sparse_coo_tensor(all_indices.t(), all_values, shape, check_invariants=False)

    return wait
