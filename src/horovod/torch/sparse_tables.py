"""Tables of embeddings: parameters with sparse gradients, which this rank need not have seen."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import torch

__all__ = ["is_sparse_table", "sparse_tables"]


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
