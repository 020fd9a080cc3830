"""Objects, parameters and optimizer state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()


@CASES.add
def objects_of_the_root() -> None:
    original: dict[str, Any] = {"a": [1, {"b": (2.5, None)}], "c": torch.arange(3), "f": "text" * 1000}
    for root in range(hvd.size()):
        here = hvd.rank() == root
        got = hvd.broadcast_object(original if here else {}, root)
        assert (got is original) == here
        assert got["a"] == original["a"]
        assert torch.equal(got["c"], original["c"])
        assert got["f"] == original["f"]
    assert hvd.broadcast_object(hvd.rank() + 5, 0, name="number") == 5


@CASES.add
def placeholders_of_another_type() -> None:
    got = hvd.broadcast_object({"x": 1} if hvd.rank() == 0 else None)
    assert got == {"x": 1}


@CASES.add
def functions_and_classes_travel() -> None:
    factor = hvd.rank() + 2
    triple = hvd.broadcast_object(lambda x: factor * x, root_rank=hvd.size() - 1)
    assert triple(3) == 3 * (hvd.size() + 1)


@CASES.add
def objects_of_everybody() -> None:
    got = hvd.allgather_object({"rank": hvd.rank(), "text": "x" * (hvd.rank() * 1000)})
    assert got == [{"rank": rank, "text": "x" * (rank * 1000)} for rank in range(hvd.size())]
    assert hvd.allgather_object(None, name="nothing") == [None] * hvd.size()


def model() -> torch.nn.Sequential:
    """Different weights on every rank."""
    torch.manual_seed(100 + hvd.rank())
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def assert_equal_everywhere(value: torch.Tensor) -> None:
    for other in hvd.allgather(value.detach().reshape(1, -1).contiguous()):
        assert torch.equal(other, value.detach().flatten())


@CASES.add
def parameters_become_those_of_the_root() -> None:
    for root in range(hvd.size()):
        net: Any = model()
        net[1].num_batches_tracked.fill_(hvd.rank() + 7)
        before = [value.clone() for value in net.state_dict().values()]
        hvd.broadcast_parameters(net.state_dict(), root)
        for value in net.state_dict().values():
            assert_equal_everywhere(value)
        assert int(net[1].num_batches_tracked) == root + 7
        if hvd.rank() == root:
            assert all(torch.equal(a, b) for a, b in zip(before, net.state_dict().values(), strict=True))


@CASES.add
def parameters_as_lists() -> None:
    net = model()
    hvd.broadcast_parameters(list(net.parameters()), 0)
    hvd.broadcast_parameters(list(net.named_parameters()), 0)
    for value in net.parameters():
        assert_equal_everywhere(value)


@CASES.add
def parameters_in_different_memory_orders() -> None:
    torch.manual_seed(hvd.rank())
    layer: Any = torch.nn.Conv2d(3, 4, 2)
    if hvd.rank() % 2 == 0:
        layer = layer.to(memory_format=torch.channels_last)
    hvd.broadcast_parameters(layer.state_dict(), 0)
    assert_equal_everywhere(layer.weight)


@CASES.add
def integer_parameters_that_are_frozen() -> None:
    net: Any = torch.nn.Linear(2, 2)
    net.register_parameter("steps", torch.nn.Parameter(torch.tensor([hvd.rank()]), requires_grad=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, weight_decay=1e-6, momentum=0.9)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(wrapped, 0)
    assert net.steps.tolist() == [0]
    assert net.steps.grad is None
    assert isinstance(net.weight.grad, torch.Tensor)
    wrapped.zero_grad()
    net(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    wrapped.step()
    assert net.steps.grad is None
    assert net.weight.grad is not None
    assert_equal_everywhere(net.weight.grad)


# Two sets of options for every optimizer; the second one differs in every value.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{"lr": 0.2, "t0": 1e5}, {"lr": 0.1, "lambd": 1e-3, "alpha": 0.5, "weight_decay": 0.1}],
    "Adadelta": [{"rho": 0.8}, {"rho": 0.7, "eps": 1e-5, "weight_decay": 0.1}],
    "Adafactor": [{"lr": 0.02}, {"lr": 0.01, "d": 2.0, "beta2_decay": -0.7}],
    "Adagrad": [{"lr": 0.02}, {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.2}],
    "Adam": [{"lr": 0.2}, {"lr": 0.1, "betas": (0.8, 0.9), "amsgrad": True, "weight_decay": 0.1}],
    "AdamW": [{"lr": 0.2}, {"lr": 0.1, "betas": (0.8, 0.9), "amsgrad": True, "weight_decay": 0.3}],
    "Adamax": [{"lr": 0.2}, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-5}],
    "Muon": [{"lr": 0.02}, {"lr": 0.01, "momentum": 0.8, "nesterov": False}],
    "NAdam": [{"lr": 0.2}, {"lr": 0.1, "betas": (0.8, 0.9), "momentum_decay": 1e-2}],
    "RAdam": [{"lr": 0.2}, {"lr": 0.1, "betas": (0.8, 0.9), "decoupled_weight_decay": True}],
    "RMSprop": [{"lr": 0.2, "momentum": 0.5}, {"lr": 0.1, "alpha": 0.8, "centered": True}],
    "Rprop": [{"lr": 0.2}, {"lr": 0.1, "etas": (0.4, 1.3), "step_sizes": (1e-5, 10)}],
    "SGD": [{"lr": 0.2, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.8, "nesterov": True}],
}
FAMILIES = {
    name: value
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value)
    and issubclass(value, torch.optim.Optimizer)
    and value is not torch.optim.Optimizer
    and name not in ("LBFGS", "SparseAdam")
}


def two_layers(bias: bool) -> torch.nn.Sequential:
    torch.manual_seed(100 + hvd.rank())
    return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=bias), torch.nn.Linear(3, 2, bias=bias))


def train_once(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 4)).pow(2).sum().backward()
    optimizer.step()


def types_of(value: Any) -> Any:
    return (type(value), [types_of(v) for v in value]) if isinstance(value, tuple) else type(value)


def state_case(name: str, options: dict[str, Any], wrap: bool) -> None:
    """A state that was loaded on rank 0 only arrives everywhere, with every type as it was."""
    family: Callable[..., torch.optim.Optimizer] = FAMILIES[name]
    bias = name != "Muon"  # which takes matrices only

    def make() -> tuple[torch.nn.Module, Any]:
        net = two_layers(bias)
        optimizer: Any = family(net.parameters(), **options)
        if wrap:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
        return net, optimizer

    net, optimizer = make()
    train_once(net, optimizer)
    saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    net, optimizer = make()
    if hvd.rank() == 0:
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)

    everywhere = hvd.allgather_object({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    root = everywhere[0]
    if hvd.rank() == 0:
        assert same(root, saved)
    for other in everywhere[1:]:
        assert same(other, root)
    for key, value in optimizer.param_groups[0].items():
        if key != "params":
            assert types_of(value) == types_of(root["optimizer"]["param_groups"][0][key]), key
    train_once(net, optimizer)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def options_case(name: str) -> None:
    """Options that differ between ranks become those of the root, and the optimizer still steps."""
    family: Callable[..., torch.optim.Optimizer] = FAMILIES[name]
    net = two_layers(bias=name != "Muon")
    root = hvd.size() - 1
    options = OPTIONS[name][hvd.rank() == root]
    optimizer: Any = family(net.parameters(), **options)
    mine = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    theirs = hvd.allgather_object(mine)[root]
    hvd.broadcast_parameters(net.state_dict(), root)
    before = [p.detach().clone() for p in net.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    for key, value in theirs.items():
        got = optimizer.param_groups[0][key]
        assert types_of(got) == types_of(value), key
        assert got == value, key
    train_once(net, optimizer)
    for parameter in net.parameters():
        assert_equal_everywhere(parameter)


@CASES.add
def every_optimizer_of_torch_is_in_the_table() -> None:
    assert set(OPTIONS) >= set(FAMILIES)


for name in FAMILIES:
    for number, options in enumerate(OPTIONS.get(name, [])):
        for wrap in (False, True):
            CASES.add_as(
                f"state_of_{name}_{number}{'_wrapped' if wrap else ''}",
                functools.partial(state_case, name, options, wrap),
            )
    CASES.add_as(f"options_of_{name}", functools.partial(options_case, name))


@CASES.add
def a_state_that_lacks_parameters_arrives_as_it_is() -> None:
    """The root never used its second layer; the others have created the state of everything."""
    net = two_layers(bias=True)
    optimizer = torch.optim.Adam(net.parameters())
    if hvd.rank() == 0:
        net[0](torch.ones(1, 4)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert len(optimizer.state) == 2
    counts = hvd.allgather_object([len(state) for state in optimizer.state_dict()["state"].values()])
    assert all(count == counts[0] for count in counts)


@CASES.add
def sparse_optimizers() -> None:
    torch.manual_seed(hvd.rank())
    net = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(net.parameters()))
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert net.weight.grad is not None
    assert net.weight.grad.is_sparse
    assert_equal_everywhere(net.weight)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(sgd, 0, model=net)
    sgd.step()


@CASES.add
def a_stateless_optimizer_gets_the_options_of_the_root() -> None:
    net = two_layers(bias=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * (hvd.rank() + 1))
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state
