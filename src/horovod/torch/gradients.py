"""The gradients of PyTorch parameters, as ``horovod.gradients.exchange`` sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from horovod.gradients.exchange import GradientStore
from horovod.runtime.process_set import ProcessSet
from horovod.torch.mpi_ops import sparse_allreduce_async
from horovod.torch.shared_gradients import SharedGradients
from horovod.torch.sparse_tables import sparse_tables

__all__ = ["Gradients", "sparse_zero", "zero_gradient"]


def zero_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """A zero gradient of ``parameter``, in the dtype of its gradients: ``grad_dtype``, if there is one."""
    return torch.zeros_like(parameter, dtype=getattr(parameter, "grad_dtype", None), requires_grad=False)


def sparse_zero(parameter: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """A gradient of ``parameter`` with no entries, of which the first ``sparse_dims`` dimensions are sparse:
    1 for those of embeddings."""
    places = torch.empty((sparse_dims, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[sparse_dims:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(places, values, parameter.shape, check_invariants=False)


class Gradients(GradientStore[torch.Tensor]):
    """The gradients in ``parameter.grad``.

    Attributes:
        parameters: by number; the owner appends to it.
    """

    def __init__(
        self,
        parameters: list[torch.Tensor],
        process_set: ProcessSet,
        shared: SharedGradients | None = None,
    ) -> None:
        self.parameters = parameters
        self._process_set = process_set
        self._shared = shared
        # Parameters whose gradient was sparse, with the number of its sparse dimensions. Where such a
        # parameter has no gradient, its zero is as sparse: ranks must agree on what its values look like.
        self._sparse: dict[int, int] = {}
        # Another rank may have used a table that this one has not used yet. They are looked for among so many
        # parameters when a gradient is missing.
        self._tables: set[int] = set()
        self._looked_at = 0
        # Frozen parameters that got zeros in order to take part.
        self._lent: list[int] = []

    def get(self, index: int) -> torch.Tensor:
        parameter = self.parameters[index]
        if parameter.grad is None:
            parameter.grad = self._zero(index)
            if not parameter.requires_grad:
                self._lent.append(index)
        return parameter.grad

    def _zero(self, index: int) -> torch.Tensor:
        parameter = self.parameters[index]
        if index not in self._sparse and parameter.dim() == 2 and index in self._find_tables():
            self._sparse[index] = 1
        if index in self._sparse:
            return sparse_zero(parameter, self._sparse[index])
        return zero_gradient(parameter)

    def _find_tables(self) -> set[int]:
        if self._looked_at < len(self.parameters):
            self._tables = sparse_tables(self.parameters)
            self._looked_at = len(self.parameters)
        return self._tables

    def put(self, index: int, gradient: torch.Tensor) -> None:
        parameter = self.parameters[index]
        if gradient.is_sparse and gradient._nnz() == 0:
            # No rank has given rows: no gradient, as in one process that has not used the table. Not every
            # optimizer takes sparse ones. Ranks agree, as only what was exchanged is looked at.
            parameter.grad = None
            return
        old = parameter.grad
        if (
            old is None
            or gradient.layout != torch.strided
            or old.layout != torch.strided
            or 0 in old.stride()
        ):
            parameter.grad = gradient
            return
        with torch.no_grad():
            old.copy_(gradient)

    def settle(self, exchanged: Sequence[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, exchanged, strict=True):
            # The gradient was replaced or dropped after it was handed over. Ranks stay equal only with the
            # exchanged one.
            if gradient is not None and parameter.grad is not gradient:
                parameter.grad = gradient
        if self._lent:
            self._take_back()
        if self._shared is not None:
            self._shared.look(exchanged)

    def _take_back(self) -> None:
        """Remove the zeros of frozen parameters that have a gradient on no rank. The optimizer must not step
        with them: weight decay would change the parameters."""
        for index in self._lent:
            parameter = self.parameters[index]
            gradient = parameter.grad
            if gradient is None or parameter.requires_grad:
                continue
            values = gradient._values() if gradient.is_sparse else gradient
            if not torch.any(values):
                parameter.grad = None
        self._lent.clear()

    def is_sparse(self, index: int, gradient: torch.Tensor) -> bool:
        if gradient.is_sparse:
            self._sparse[index] = gradient.sparse_dim()
            return True
        return False

    def to_dense(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to_dense()

    def to_sparse(self, dense: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return dense.to_sparse(like.sparse_dim())

    def sparse_allreduce(self, gradient: torch.Tensor, name: str, op: int) -> Callable[[], torch.Tensor]:
        return sparse_allreduce_async(gradient, name, op, self._process_set)
