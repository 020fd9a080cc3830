"""The gradients of PyTorch parameters, as ``horovod.gradients.exchange`` sees them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeGuard

import torch

from horovod.gradients.exchange import GradientStore
from horovod.runtime.process_set import ProcessSet
from horovod.torch.mpi_ops import sparse_allreduce_async
from horovod.torch.shared_gradients import SharedGradients

__all__ = ["Gradients", "is_sparse_table", "sparse_tables", "sparse_zero", "zero_gradient"]


def zero_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """A zero gradient of ``parameter``, in the dtype of its gradients: ``grad_dtype``, if there is one."""
    return torch.zeros_like(parameter, dtype=getattr(parameter, "grad_dtype", None), requires_grad=False)


def sparse_zero(parameter: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """A gradient of ``parameter`` with no entries, of which the first ``sparse_dims`` dimensions are sparse:
    1 for those of embeddings."""
    places = torch.empty((sparse_dims, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[sparse_dims:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(places, values, parameter.shape, check_invariants=False)


_REMEDY: Final = (
    "Ranks would go on with different weights, or with others than one process. To change the exchanged "
    "gradients, as one process does (to clip, scale, unscale or clear them), write\n"
    "    optimizer.synchronize()\n"
    "    ...  # the change, for example clip_grad_norm_ or scaler.unscale_(optimizer)\n"
    "    with optimizer.skip_synchronize():\n"
    "        optimizer.step()\n"
    "or change them in a hook: optimizer.register_synchronize_post_hook(hook) after the exchange, or "
    "optimizer.register_gradient_hook(hook) for each gradient of this rank, before it."
)


def _without_neighbours(
    changed: Sequence[int],
    parameters: Sequence[torch.Tensor],
    handed: Sequence[torch.Tensor | None],
    versions: Sequence[int],
) -> Sequence[int]:
    """Members of ``changed`` that are no views of a tensor which other gradients of the same backward pass
    lie in: all views have one version, which the accumulation of each of them changes."""
    latest: dict[int, int] = {}
    for gradient, version in zip(handed, versions, strict=True):
        if gradient is not None and (base := gradient._base) is not None:
            latest[id(base)] = max(version, latest.get(id(base), 0))

    def by_a_neighbour(index: int) -> bool:
        gradient = handed[index]
        assert gradient is not None
        return parameters[index].grad is gradient and latest.get(id(gradient._base)) == gradient._version

    return [index for index in changed if not by_a_neighbour(index)]


class Gradients(GradientStore[torch.Tensor]):
    """The gradients in ``parameter.grad``.

    Their versions are those that autograd counts. It counts no changes through ``.data``, NumPy or pointers.

    Attributes:
        parameters: by number; the owner appends to it.
    """

    remedy = _REMEDY

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

    def get(self, index: int) -> torch.Tensor | None:
        return self.parameters[index].grad

    def zero(self, index: int) -> torch.Tensor:
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

    def renew(self, index: int) -> None:
        """There is another parameter of this number: forget what was known of the old one."""
        self._sparse.pop(index, None)
        self._looked_at = 0

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

    def version(self, gradient: torch.Tensor) -> int:
        return gradient._version

    def changed(self, handed: Sequence[torch.Tensor | None], versions: Sequence[int]) -> Sequence[int]:
        changed = [
            index
            for index, (parameter, gradient, version) in enumerate(
                zip(self.parameters, handed, versions, strict=True)
            )
            if gradient is not None and (gradient._version != version or parameter.grad is not gradient)
        ]
        return _without_neighbours(changed, self.parameters, handed, versions) if changed else changed

    def settle(self, exchanged: Sequence[torch.Tensor | None]) -> None:
        if self._shared is not None:
            self._shared.look(exchanged)

    def is_complex(self, index: int) -> bool:
        return self.parameters[index].is_complex()

    def as_real(self, dense: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(dense.detach().resolve_conj())

    def as_complex(self, parts: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(parts)

    def share_memory(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.data_ptr() == other.data_ptr()

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


def is_sparse_table(module: torch.nn.Module) -> TypeGuard[torch.nn.Embedding | torch.nn.EmbeddingBag]:
    """Return whether the gradient of the module's weight holds only the rows that were used."""
    return isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse


def sparse_tables(parameters: Sequence[torch.Tensor]) -> set[int]:
    """The numbers of those ``parameters`` that belong to embeddings with ``sparse=True`` and to nothing else.
    A table that a layer shares has a dense gradient where that layer was used.

    An optimizer knows tensors, not modules, so this looks through all objects of the process, once for its
    parameters.
    """
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    tables, others = set[int](), set[int]()
    for module in _modules():
        for held in list(vars(module).get("_parameters", {}).values()):  # another thread may add some
            if (number := numbers.get(id(held))) is not None:
                (tables if is_sparse_table(module) else others).add(number)
    return tables - others


def _modules() -> Iterator[torch.nn.Module]:
    for each in gc.get_objects():
        # The type: an object may claim another class, and compute the claim.
        if issubclass(type(each), torch.nn.Module):
            yield each
