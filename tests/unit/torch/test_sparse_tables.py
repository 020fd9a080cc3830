"""Tables of embeddings are found by their parameters, and nothing else is taken for one."""

from __future__ import annotations

import torch

from horovod.torch.gradients import sparse_tables


class Liar:
    """Claims to be of another class, and fails when it is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("asked")


def test_tables_are_found_wherever_they_are() -> None:
    alive = Liar()
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Embedding(4, 2, sparse=True))
    bag, dense = torch.nn.EmbeddingBag(4, 2, sparse=True), torch.nn.Embedding(4, 2)
    parameters = [*inner.parameters(), bag.weight, dense.weight, torch.nn.Parameter(torch.zeros(2, 2))]
    assert sparse_tables(parameters) == {2, 3}
    del alive


def test_a_table_that_a_layer_shares_is_none() -> None:
    table, head = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 4, bias=False)
    assert sparse_tables([table.weight]) == {0}
    head.weight = table.weight
    assert sparse_tables([table.weight]) == set()


def test_a_module_whose_constructor_has_not_run_is_passed_over() -> None:
    half = torch.nn.Embedding.__new__(torch.nn.Embedding)
    table = torch.nn.Embedding(4, 2, sparse=True)
    assert sparse_tables([table.weight]) == {0}
    del half
