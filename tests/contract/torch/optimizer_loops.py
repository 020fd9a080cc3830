"""What scripts do around `DistributedOptimizer`: clipping, mixed precision, accumulation, freezing, adding
parameters, copies, checkpoints."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.contract.torch.optimizer_families import (
    assert_trained_alike,
    batch,
    loss_of,
    network,
    share,
)
from tests.contract.torch.state import assert_equal_everywhere
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.torch.compression import Compressor

CASES = Cases()


def sgd(net: torch.nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        named_parameters=net.named_parameters(),
        **options,
    )


def plain(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def clip(net: torch.nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)


def clipped_after_synchronize(net: torch.nn.Module, optimizer: Any) -> None:
    optimizer.synchronize()
    clip(net)
    with optimizer.skip_synchronize():
        optimizer.step()


def clipped_by_a_hook(net: torch.nn.Module, optimizer: Any) -> None:
    with_hook = optimizer.register_synchronize_post_hook(lambda _: clip(net))
    optimizer.step()
    with_hook.remove()


def clipped_by_a_step_hook(net: torch.nn.Module, optimizer: Any) -> None:
    with_hook = optimizer.register_step_pre_hook(lambda *_: clip(net))
    optimizer.step()
    with_hook.remove()


def clipping_case(way: Callable[[torch.nn.Module, Any], None]) -> None:
    """Clipping what has been exchanged is clipping the gradient of the whole batch."""
    net, alone = network(), network()
    optimizer, reference = sgd(net), plain(alone)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, share(step)).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            way(net, optimizer)
        reference.zero_grad()
        loss_of(alone, batch(step)).backward()
        clip(alone)
        reference.step()
    assert_trained_alike(net, alone)


for way in (clipped_after_synchronize, clipped_by_a_hook, clipped_by_a_step_hook):
    CASES.add_as(way.__name__, functools.partial(clipping_case, way))


@CASES.add
def gradients_are_clipped_before_the_exchange() -> None:
    """One by one while backward runs, or all together when it has ended."""
    bound = 0.5

    def one_by_one(optimizer: Any) -> None:
        optimizer.register_gradient_hook(lambda p: p.grad.clamp_(-bound, bound))

    def together(optimizer: Any) -> None:
        optimizer.register_synchronize_pre_hook(
            lambda _: torch.nn.utils.clip_grad_value_(model.parameters(), bound)
        )

    for register in (one_by_one, together):
        for groups in (None, 1):
            model = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.zeros_(model.weight)
            optimizer: Any = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Sum, groups=groups
            )
            register(optimizer)
            # Local gradients: 0.2 on rank 0, beyond the bound on the others.
            model(torch.full((1, 2), 0.2 if hvd.rank() == 0 else 3.0)).sum().backward()
            optimizer.step()
            expected = -(0.2 + bound * (hvd.size() - 1))
            assert torch.allclose(model.weight, torch.full((1, 2), expected))


def scaler_case(way: str) -> None:
    """An infinity on one rank lets all ranks skip the step and lower the scale."""
    net, alone = network().float(), network().float()
    optimizer, reference = sgd(net), plain(alone)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(net, share(step).float())
        broken = step == 1
        if broken and hvd.rank() == hvd.size() - 1:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        if way == "by hand":
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        elif way == "unscaled":
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        if not broken:
            reference.zero_grad()
            loss_of(alone, batch(step).float()).backward()
            reference.step()
    assert scaler.get_scale() == 2.0
    for mine, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert_equal_everywhere(mine)
        assert torch.allclose(mine, expected, rtol=1e-4, atol=1e-6)


for way_of_scaler in ("plain", "by hand", "unscaled"):
    CASES.add_as(
        f"grad_scaler_{way_of_scaler.replace(' ', '_')}", functools.partial(scaler_case, way_of_scaler)
    )


@CASES.add
def grad_scaler_with_a_fused_optimizer() -> None:
    """It looks for infinities and unscales by itself."""
    net = network().float()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.Adam(net.parameters(), fused=True), named_parameters=net.named_parameters()
    )
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(net, share(step).float())
        before = [p.detach().clone() for p in net.parameters()]
        if step == 1 and hvd.rank() == 0:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
        assert moved == (step != 1)
    assert scaler.get_scale() == 2.0
    for parameter in net.parameters():
        assert_equal_everywhere(parameter)


def accumulation_case(set_to_none: bool) -> None:
    net, alone = network(), network()
    optimizer, reference = sgd(net, backward_passes_per_step=2), plain(alone)
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        reference.zero_grad()
        for number in (2 * step, 2 * step + 1):
            (loss_of(net, share(number)) / 2).backward()
            (loss_of(alone, batch(number)) / 2).backward()
        optimizer.step()
        reference.step()
    assert_trained_alike(net, alone)


CASES.add_as("accumulation_set_to_none", functools.partial(accumulation_case, True))
CASES.add_as("accumulation_zeros", functools.partial(accumulation_case, False))


@CASES.add
def layers_frozen_and_unfrozen_during_the_training() -> None:
    """Frozen from the start, unfrozen later, another one frozen for a while: as on one process, with weight
    decay that would move a frozen layer if it got zeros."""
    net, alone = network(), network()

    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    for model in (net, alone):
        model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(make(net), named_parameters=net.named_parameters())
    reference = make(alone)
    for step in range(6):
        for model in (net, alone):
            if step == 2:
                model[0].requires_grad_(True)
            model[2].requires_grad_(step not in (3, 4))
        for of, model, inputs in ((optimizer, net, share(step)), (reference, alone, batch(step))):
            of.zero_grad()
            loss_of(model, inputs).backward()
            of.step()
    assert_trained_alike(net, alone)


@CASES.add
def parameters_added_during_the_training() -> None:
    for named in (False, True):
        net, alone = network(), network()
        names = net.named_parameters() if named else None
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(net[2].parameters(), lr=0.1, momentum=0.9), named_parameters=names
        )
        reference = torch.optim.SGD(alone[2].parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": net[0].parameters(), "lr": 0.05})
                reference.add_param_group({"params": alone[0].parameters(), "lr": 0.05})
            net.zero_grad()
            loss_of(net, share(step)).backward()
            optimizer.step()
            alone.zero_grad()
            loss_of(alone, batch(step)).backward()
            reference.step()
        assert_trained_alike(net, alone)


@CASES.add
def two_optimizers_without_names() -> None:
    """Both are in flight at once; the second has the positions of the first."""
    net, alone = network(), network()
    optimizers: list[Any] = [hvd.DistributedOptimizer(plain(net[layer])) for layer in (0, 2)]
    references = [plain(alone[layer]) for layer in (0, 2)]
    for step in range(2):
        for of in (*optimizers, *references):
            of.zero_grad()
        loss_of(net, share(step)).backward()
        loss_of(alone, batch(step)).backward()
        for of in (*optimizers, *references):
            of.step()
    assert_trained_alike(net, alone)


@CASES.add
def copies_go_on_as_the_original() -> None:
    net, alone = network(), network()
    optimizer, reference = sgd(net, groups=2), plain(alone)
    for step in range(4):
        if step == 2:
            net, optimizer = copy.deepcopy((net, optimizer))
        if step == 3:
            net, optimizer = pickle.loads(pickle.dumps((net, optimizer)))
        optimizer.zero_grad()
        loss_of(net, share(step)).backward()
        optimizer.step()
        reference.zero_grad()
        loss_of(alone, batch(step)).backward()
        reference.step()
    assert_trained_alike(net, alone)


@CASES.add
def checkpoints_of_the_plain_optimizer() -> None:
    """Both kinds load each other's; rank 0 tells the others."""
    net, alone = network(), network()
    reference = plain(alone)
    loss_of(alone, batch(0)).backward()
    reference.step()
    file = io.BytesIO()
    torch.save({"net": alone.state_dict(), "optimizer": reference.state_dict()}, file)
    file.seek(0)
    optimizer = sgd(net)
    if hvd.rank() == 0:
        saved = torch.load(file)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for of, model, inputs in ((optimizer, net, share(1)), (reference, alone, batch(1))):
        of.zero_grad()
        loss_of(model, inputs).backward()
        of.step()
    assert_trained_alike(net, alone)


@CASES.add
def compiled_models() -> None:
    if hvd.size() not in (2, 3):  # compiling takes seconds on each rank; these two differ in overlapping
        return
    for backend in ("eager", "aot_eager"):
        net, alone = network(), network()
        optimizer, reference = sgd(net), plain(alone)
        compiled: Any = torch.compile(net, backend=backend)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(compiled, share(step)).backward()
            optimizer.step()
            reference.zero_grad()
            loss_of(alone, batch(step)).backward()
            reference.step()
        assert_trained_alike(net, alone)


class Quarters(Compressor):
    """Sends multiples of a quarter; what that leaves out is added to the next gradient of the parameter."""

    def __init__(self) -> None:
        self.error = torch.zeros(())

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:  # type: ignore[override]
        wanted = tensor + self.error
        sent = (wanted * 4).round()
        self.error = wanted - sent / 4
        return sent.to(torch.float16), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # type: ignore[override]
        return tensor.to(ctx) / 4


class ErrorFeedback:
    """A compressor with a memory for each parameter."""

    def __init__(self) -> None:
        self.made: dict[str, Quarters] = {}

    def for_tensor(self, name: str) -> Quarters:
        return self.made.setdefault(name, Quarters())


@CASES.add
def a_compressor_that_remembers_its_error() -> None:
    for groups in (None, 1):
        model = torch.nn.Linear(2, 1)
        torch.nn.init.zeros_(model.weight)
        feedback = ErrorFeedback()
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            named_parameters=model.named_parameters(),
            compression=feedback,
            op=hvd.Sum,
            groups=groups,
        )
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.full((1, 2), 0.1)).sum().backward()
            optimizer.step()
        if hvd.size() > 1:
            assert set(feedback.made) == {"weight", "bias"}
            # Ten gradients of 0.1, sent as 0 0 1/4 0 …: what arrived is the sum but for the last error.
            assert torch.allclose(
                model.weight, -(1.0 - feedback.made["weight"].error) * hvd.size(), atol=1e-5
            )
        assert_equal_everywhere(model.weight)


@CASES.add
def bfloat16_compression() -> None:
    net, alone = network().float(), network().float()
    optimizer, reference = sgd(net, compression=hvd.Compression.bf16), plain(alone)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(net, share(step).float()).backward()
        optimizer.step()
        reference.zero_grad()
        loss_of(alone, batch(step).float()).backward()
        reference.step()
    for mine, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert_equal_everywhere(mine)
        assert torch.allclose(mine, expected, rtol=5e-2, atol=5e-3)


@CASES.add
def huge_values_survive_bfloat16_compression() -> None:
    value = torch.full((3,), 1e30)
    got = hvd.allreduce(value, compression=hvd.Compression.bf16)
    assert got.dtype == torch.float32
    assert torch.allclose(got, value, rtol=1e-2)


@CASES.add
def a_closure_that_clips() -> None:
    """It may call synchronize itself; nothing is exchanged twice."""
    net, alone = network(), network()
    optimizer = sgd(net, op=hvd.Sum)
    reference = plain(alone)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, share(0))
        loss.backward()
        optimizer.synchronize()
        clip(net)
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(closure)
    (loss_of(alone, batch(0)) * hvd.size()).backward()
    clip(alone)
    reference.step()
    assert_trained_alike(net, alone)
