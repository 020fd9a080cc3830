"""`DistributedOptimizer` on real ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.contract.torch.state import FAMILIES, assert_equal_everywhere
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
OPTIONS: list[dict[str, Any]] = [
    {},
    {"compression": hvd.Compression.fp16},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"groups": "lists", "compression": hvd.Compression.fp16},
    {"op": hvd.Sum},
    {"backward_passes_per_step": 2},
]


def net() -> torch.nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2 * 36, 3)
    )


def batches(steps: int, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        data = torch.randn(2, 1, 8, 8, generator=generator, device="cpu")
        yield data.to(torch.tensor(0).device)


def lists_of(model: torch.nn.Module) -> list[list[torch.Tensor]]:
    parameters = list(model.parameters())
    return [[parameters[3], parameters[0]], [parameters[1]]]


def training_case(options: dict[str, Any]) -> None:
    """Training on all ranks equals training of one process on everybody's data."""
    options = dict(options)
    passes = options.get("backward_passes_per_step", 1)
    model, alone = net(), net()
    if options.get("groups") == "lists":
        options["groups"] = lists_of(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        **options,
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.zero_grad()
    reference = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    divisor = 1 if options.get("op") == hvd.Sum else hvd.size()
    all_data = [list(batches(3 * passes, seed=rank)) for rank in range(hvd.size())]
    for step in range(3):
        reference.zero_grad()
        for number in range(step * passes, (step + 1) * passes):
            model(all_data[hvd.rank()][number]).pow(2).mean().backward()
            for data in all_data:
                (alone(data[number]).pow(2).mean() / divisor).backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.step()
    tolerance = 2e-2 if "compression" in options else 1e-4
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_equal_everywhere(mine)
        assert torch.allclose(mine, expected, rtol=tolerance, atol=tolerance / 10)


for number, options in enumerate(OPTIONS):
    CASES.add_as(
        f"training_{'_'.join(options) or 'plain'}_{number}", functools.partial(training_case, options)
    )


def subgraphs_case(name: str) -> None:
    """Rank 0 uses one head, the others the other one: all parameters are reduced everywhere."""
    torch.manual_seed(1)
    bias = name != "Muon"
    body, heads = (
        torch.nn.Linear(4, 4, bias=bias),
        torch.nn.ModuleList([torch.nn.Linear(4, 2, bias=bias) for _ in range(2)]),
    )
    model = torch.nn.ModuleList([body, heads])
    family: Any = FAMILIES[name]
    optimizer = hvd.DistributedOptimizer(
        family(model.parameters()), named_parameters=model.named_parameters()
    )
    for _ in range(2):
        optimizer.zero_grad()
        heads[0 if hvd.rank() == 0 else 1](body(torch.ones(3, 4))).sum().backward()
        optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)
        if hvd.size() > 1:
            assert parameter.grad is not None


for name in FAMILIES:
    CASES.add_as(f"different_subgraphs_{name}", functools.partial(subgraphs_case, name))


@CASES.add
def generator_and_discriminator_take_turns() -> None:
    torch.manual_seed(5)
    generator, critic = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    models = {"g": generator, "d": critic}
    optimizers: dict[str, Any] = {
        key: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01),
            named_parameters=[(f"{key}.{name}", p) for name, p in model.named_parameters()],
        )
        for key, model in models.items()
    }
    for step in range(10):
        on, off = ("g", "d") if step % 2 else ("d", "g")
        models[on].requires_grad_(True)
        models[off].requires_grad_(False)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        critic(generator(torch.full((2, 3), float(hvd.rank() + step)))).sum().backward()
        assert all(p.grad is not None for p in models[on].parameters())
        assert all(p.grad is None for p in models[off].parameters())
        optimizers[on].step()
    for parameter in [*generator.parameters(), *critic.parameters()]:
        assert_equal_everywhere(parameter)


@CASES.add
def clipping_between_synchronize_and_step() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    model(torch.full((2, 1, 8, 8), hvd.rank() + 1.0)).sum().backward()
    optimizer.synchronize()
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    after = torch.linalg.vector_norm(
        torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    )
    assert after < before
    with warnings.catch_warnings(), optimizer.skip_synchronize():
        warnings.simplefilter("error")
        optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)


@CASES.add
def step_after_synchronize_warns_once() -> None:
    if hvd.size() == 1:
        return
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"called without optimizer.skip_synchronize\(\)") as seen:
        optimizer.step()
    assert len(seen) == 1


@CASES.add
def one_backward_too_many() -> None:
    if hvd.size() == 1:
        return
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    data = torch.ones(2, 1, 8, 8)
    model(data).sum().backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        model(data).sum().backward()
    optimizer.synchronize()
    optimizer.zero_grad()


@CASES.add
def an_early_step_reduces_what_has_accumulated() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=4,
        op=hvd.Sum,
    )
    for _ in range(2):
        model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert_same(model.weight.detach(), torch.full((1, 2), -1.0 * hvd.size() * (hvd.size() + 1)))


@CASES.add
def generated_names_agree_over_param_groups() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[3].parameters()}], lr=0.1)
    )
    names = list(optimizer._parameter_names.values())
    assert len(set(names)) == 4
    assert all(other == names for other in hvd.allgather_object(names))
    model(torch.full((2, 1, 8, 8), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)


@CASES.add
def groups_are_cut_in_the_order_of_rank_0() -> None:
    model = net()
    parameters = list(model.named_parameters())
    if hvd.rank() % 2:
        parameters.reverse()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in parameters], lr=0.1), named_parameters=parameters, groups=3
    )
    model(torch.full((2, 1, 8, 8), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)


@CASES.add
def a_group_whose_members_fire_on_some_ranks_only() -> None:
    torch.manual_seed(1)
    model = torch.nn.ModuleList([torch.nn.Linear(4, 2) for _ in range(2)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), groups=1
    )
    for step in range(3):
        optimizer.zero_grad()
        loss = model[0](torch.ones(1, 4)).sum()
        if hvd.rank() == step % hvd.size():
            loss = loss + model[1](torch.ones(1, 4)).sum()
        loss.backward()
        optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)


def sparse_case(as_dense: bool) -> None:
    torch.manual_seed(3)
    model = torch.nn.Embedding(20, 3, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(model.parameters())),
        named_parameters=model.named_parameters(),
        sparse_as_dense=as_dense,
    )
    for step in range(3):
        optimizer.zero_grad()
        rows = torch.arange(hvd.rank() + 1 + step) % 20
        model(rows).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad is not None
        assert model.weight.grad.is_sparse
        with optimizer.skip_synchronize():
            optimizer.step()
        expected = torch.zeros(20)
        for rank in range(hvd.size()):
            expected[: rank + 1 + step] += 1.0 / hvd.size()
        assert_same(model.weight.grad.to_dense(), expected[:, None].expand(20, 3).contiguous(), 1e-6)
    assert_equal_everywhere(model.weight)


CASES.add_as("sparse_gradients", functools.partial(sparse_case, False))
CASES.add_as("sparse_gradients_as_dense", functools.partial(sparse_case, True))


@CASES.add
def a_sparse_embedding_that_some_ranks_do_not_use_in_a_step() -> None:
    for start in (0, 1):  # in the first step ranks know from the zeros of the broadcast that it is sparse
        torch.manual_seed(3)
        model = torch.nn.Embedding(20, 3, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5), named_parameters=model.named_parameters()
        )
        hvd.broadcast_optimizer_state(optimizer, 0, model)
        expected = model.weight.detach().clone()
        for step in range(start, 3):
            if step > start:
                optimizer.zero_grad()
            used = hvd.rank() == 0 or step == 1
            if used:
                model(torch.tensor([step, 7])).sum().backward()
            optimizer.step()
            share = 1.0 if step == 1 else 1.0 / hvd.size()
            expected[[step, 7]] -= 0.5 * share
        assert_same(model.weight.detach(), expected, 1e-6)
        assert_equal_everywhere(model.weight)


@CASES.add
def a_sparse_embedding_that_some_ranks_have_never_used() -> None:
    for as_dense, passes in ((False, 1), (True, 1), (False, 2)):
        torch.manual_seed(3)
        embedding, head = torch.nn.Embedding(20, 3, sparse=True), torch.nn.Linear(3, 1)
        model, table = torch.nn.Sequential(embedding, head), embedding.weight
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.5),
            named_parameters=model.named_parameters(),
            sparse_as_dense=as_dense,
            backward_passes_per_step=passes,
        )
        expected = table.detach().clone()
        for step in range(4):  # nobody, the last rank, nobody, everybody
            optimizer.zero_grad()
            users = [0, 1, 0, hvd.size()][step]
            for _ in range(passes):
                if hvd.size() - hvd.rank() <= users:
                    embedding(torch.tensor([step, 7])).sum().backward()
                else:
                    head(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            expected[[step, 7]] -= 0.5 * passes * users / hvd.size()
            assert_same(table.detach(), expected, 1e-5)
            assert_equal_everywhere(table)
            assert_equal_everywhere(head.weight)


@CASES.add
def a_sparse_embedding_that_nobody_uses_beside_adam() -> None:
    """Adam takes no sparse gradient, and in one process it sees none."""
    for as_dense in (False, True):
        torch.manual_seed(3)
        embedding, head = torch.nn.Embedding(20, 3, sparse=True), torch.nn.Linear(3, 1)
        model = torch.nn.Sequential(embedding, head)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(),
            sparse_as_dense=as_dense,
        )
        before = embedding.weight.detach().clone()
        for _ in range(2):
            optimizer.zero_grad()
            head(torch.full((2, 3), hvd.rank() + 1.0)).sum().backward()
            optimizer.step()
        assert embedding.weight.grad is None
        assert torch.equal(embedding.weight, before)
        assert_equal_everywhere(head.weight)


@CASES.add
def gradients_in_different_memory_orders() -> None:
    model: Any = net()
    if hvd.rank() % 2 == 0:
        model = model.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    model(torch.full((2, 1, 8, 8), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)


@CASES.add
def gradients_that_are_replaced_before_the_step() -> None:
    """A user may assign gradients without any backward."""
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), op=hvd.Sum
    )
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, hvd.rank() + 1.0)
    optimizer.synchronize()
    if hvd.size() > 1:
        assert_same(model.bias.grad, torch.full((2,), hvd.size() * (hvd.size() + 1) / 2))


@CASES.add
def loading_a_state_drops_what_is_in_flight() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
    )
    state = optimizer.state_dict()
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    optimizer.load_state_dict(state)
    hvd.barrier()
    optimizer.zero_grad()
    model(torch.full((2, 1, 8, 8), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        assert_equal_everywhere(parameter)


@CASES.add
def a_learning_rate_scheduler_works_on_the_wrapped_optimizer() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 1, 8, 8)).sum().backward()
            optimizer.step()
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
