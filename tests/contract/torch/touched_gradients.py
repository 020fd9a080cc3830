"""Ways in which scripts touch gradients, with and without overlap: training on all ranks is training of one
process on the whole batch, to the same bits on every rank; or every rank says that a gradient was changed
while it was exchanged. Nothing else happens.

A way is a function that runs twice, in a process by itself and on all ranks: see :class:`Script`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tests.contract.torch.state import assert_equal_everywhere
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.errors import GradientChangedError
from horovod.gradients.exchange import GradientExchange

CASES = Cases()
STEPS = 4
SHARE = 3  # samples of each rank in each step

Make = Callable[..., torch.optim.Optimizer]


class Net(torch.nn.Module):
    """A body, a head for even and one for odd steps or ranks, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 3)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)])
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor, head: int = 0) -> torch.Tensor:
        outputs: torch.Tensor = self.heads[head](torch.tanh(self.body(inputs)))
        return outputs


class Script:
    """A training script: on all ranks with a share of each batch, or in one process with the whole one."""

    def __init__(self, ranks: bool) -> None:
        self.ranks = ranks
        torch.manual_seed(11)
        self.model = Net().double()
        self.optimizer: Any = None

    def wrap(self, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
        self.optimizer = optimizer
        if self.ranks:
            options.setdefault("named_parameters", self.model.named_parameters())
            self.optimizer = hvd.DistributedOptimizer(optimizer, **options)
        return self.optimizer

    def sgd(self, **options: Any) -> Any:
        """An optimizer that moves whatever has a gradient: by decay and by momentum."""
        return self.wrap(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), **options
        )

    def samples(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 + step)
        whole = torch.randn(SHARE * hvd.size(), 4, generator=generator, dtype=torch.float64, device="cpu")
        # Losses of different sizes on the ranks.
        whole *= torch.arange(1.0, len(whole) + 1, device="cpu").unsqueeze(1)
        whole = whole.to(torch.tensor(0).device)
        return whole[hvd.rank() * SHARE :][:SHARE] if self.ranks else whole

    def loss(self, step: int, head: int = 0) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.samples(step), head).pow(2).mean()
        return loss

    def scaler(self) -> Any:
        return torch.amp.GradScaler(torch.tensor(0).device.type, init_scale=64.0)

    def synchronize(self) -> None:
        if self.ranks:
            self.optimizer.synchronize()

    def synchronized(self) -> AbstractContextManager[None]:
        skip: AbstractContextManager[None] = (
            self.optimizer.skip_synchronize() if self.ranks else nullcontext()
        )
        return skip

    def steps(self, between: Callable[[], object] = lambda: None) -> None:
        """The usual loop, with something between backward and step."""
        for step in range(STEPS):
            self.optimizer.zero_grad()
            self.loss(step).backward()
            between()
            self.optimizer.step()

    def steps_with_synchronize(self, change: Callable[[], object]) -> None:
        for step in range(STEPS):
            self.optimizer.zero_grad()
            self.loss(step).backward()
            self.synchronize()
            change()
            with self.synchronized():
                self.optimizer.step()

    def gradients(self) -> Iterator[torch.Tensor]:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                yield parameter.grad

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)

    def scale(self) -> None:
        for gradient in self.gradients():
            gradient.mul_(0.5)

    def centre(self) -> None:
        for gradient in self.gradients():
            if gradient.dim() > 1:
                gradient.sub_(gradient.mean(1, keepdim=True))


Way = Callable[[Script], None]


def clamp(parameter: Any) -> None:
    parameter.grad.clamp_(-0.01, 0.01)


def halve(parameter: Any) -> None:
    parameter.grad.mul_(0.5)


EQUAL: dict[str, Way] = {}
SEEN: dict[str, Way] = {}
"""On several ranks these are told apart from training."""


def equal(way: Way) -> Way:
    EQUAL[way.__name__] = way
    return way


def seen(way: Way) -> Way:
    SEEN[way.__name__] = way
    return way


@contextmanager
def overlap(*, on: bool) -> Iterator[None]:
    """As ``HOROVOD_OVERLAP_GRADIENTS`` has it, which holds for a whole world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientExchange, "_exchanges_late", lambda _: not on)
        # No embedding is here, and to look for them in every case would take most of the time.
        patch.setattr("horovod.torch.gradients.sparse_tables", lambda _: set())
        yield


def check(way: Way, *, changes: bool, on: bool) -> None:
    if hvd.size() == 1 and not on:
        return  # nothing is exchanged
    alone, ours = Script(ranks=False), Script(ranks=True)
    chance = torch.get_rng_state()
    with overlap(on=on):
        if changes and hvd.size() > 1:
            with pytest.raises(GradientChangedError, match="skip_synchronize"):
                way(ours)
            return
        way(ours)
    torch.set_rng_state(chance)
    way(alone)
    theirs = [parameter for group in alone.optimizer.param_groups for parameter in group["params"]]
    mine = [parameter for group in ours.optimizer.param_groups for parameter in group["params"]]
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-9, atol=1e-11)
        assert_equal_everywhere(torch.view_as_real(one.detach()) if one.is_complex() else one)
    # What was never stepped has no state.
    assert [bool(ours.optimizer.state.get(p)) for p in mine] == [
        bool(alone.optimizer.state.get(p)) for p in theirs
    ]


# -- between backward and step -----------------------------------------------------------------------------


@equal
def nothing_at_all(script: Script) -> None:
    script.sgd()
    script.steps()


@equal
def reading(script: Script) -> None:
    script.sgd()
    script.steps(lambda: [gradient.norm() for gradient in script.gradients()])


@seen
def clipping_by_the_norm(script: Script) -> None:
    script.sgd()
    script.steps(script.clip)


@seen
def clipping_by_value(script: Script) -> None:
    script.sgd()
    script.steps(lambda: torch.nn.utils.clip_grad_value_(script.model.parameters(), 0.01))


@seen
def scaling_by_hand(script: Script) -> None:
    script.sgd()
    script.steps(script.scale)


@seen
def adding_noise(script: Script) -> None:
    script.sgd()
    script.steps(lambda: [gradient.add_(torch.randn_like(gradient)) for gradient in script.gradients()])


@seen
def zeroing_one(script: Script) -> None:
    script.sgd()
    script.steps(lambda: next(script.gradients()).zero_())


@seen
def masking_by_index(script: Script) -> None:
    def mask() -> None:
        next(script.gradients())[0] = 0.0

    script.sgd()
    script.steps(mask)


@seen
def centralisation(script: Script) -> None:
    script.sgd()
    script.steps(script.centre)


@seen
def surgery_by_replacement(script: Script) -> None:
    def replace() -> None:
        for parameter in script.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.sign()

    script.sgd()
    script.steps(replace)


@seen
def deleting_one(script: Script) -> None:
    def delete() -> None:
        script.model.body.bias.grad = None

    script.sgd()
    script.steps(delete)


@seen
def editing_a_detached_view(script: Script) -> None:
    script.sgd()
    script.steps(lambda: next(script.gradients()).detach().clamp_(-0.01, 0.01))


@seen
def clearing_by_the_model(script: Script) -> None:
    script.sgd()
    script.steps(script.model.zero_grad)


@seen
def clearing_in_place_by_the_model(script: Script) -> None:
    script.sgd()
    script.steps(lambda: script.model.zero_grad(set_to_none=False))


@seen
def clipping_in_groups(script: Script) -> None:
    script.sgd(**({"groups": 2} if script.ranks else {}))
    script.steps(script.clip)


@seen
def clipping_compressed_gradients(script: Script) -> None:
    script.sgd(**({"compression": hvd.Compression.fp16} if script.ranks else {}))
    script.steps(script.clip)


@seen
def a_hook_of_the_parameter_that_came_after_wrapping(script: Script) -> None:
    script.sgd()
    for parameter in script.model.parameters():
        parameter.register_post_accumulate_grad_hook(clamp)
    script.steps()


def views_of_one_tensor(script: Script, clips: bool) -> None:
    """Each of them gets a new version when its neighbours are accumulated."""
    script.sgd()
    used = [*script.model.body.parameters(), *script.model.heads[0].parameters()]
    flat = torch.zeros(sum(map(torch.numel, used)), dtype=torch.float64)
    for parameter, part in zip(used, flat.split([p.numel() for p in used]), strict=True):
        parameter.grad = part.view_as(parameter)
    for step in range(STEPS):
        flat.zero_()
        script.loss(step).backward()
        if clips:
            flat.clamp_(-0.01, 0.01)
        script.optimizer.step()


EQUAL["views_of_one_tensor"] = functools.partial(views_of_one_tensor, clips=False)
SEEN["clipping_the_tensor_behind_all"] = functools.partial(views_of_one_tensor, clips=True)


# -- between synchronize and step --------------------------------------------------------------------------


@equal
def clipping_after_synchronize(script: Script) -> None:
    script.sgd()
    script.steps_with_synchronize(script.clip)


@equal
def centralisation_after_synchronize(script: Script) -> None:
    script.sgd()
    script.steps_with_synchronize(script.centre)


@equal
def replacement_after_synchronize(script: Script) -> None:
    def replace() -> None:
        for parameter in script.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.sign()

    script.sgd()
    script.steps_with_synchronize(replace)


@equal
def clearing_after_synchronize(script: Script) -> None:
    script.sgd()
    script.steps_with_synchronize(script.model.zero_grad)


@equal
def unscaling_after_synchronize(script: Script) -> None:
    optimizer, scaler = script.sgd(), script.scaler()
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(script.loss(step)).backward()
        script.synchronize()
        scaler.unscale_(optimizer)
        script.clip()
        with script.synchronized():
            scaler.step(optimizer)
        scaler.update()


@equal
def unscaling_and_clipping_as_in_one_process(script: Script) -> None:
    optimizer, scaler = script.sgd(), script.scaler()
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(script.loss(step)).backward()
        scaler.unscale_(optimizer)
        script.clip()
        scaler.step(optimizer)
        scaler.update()


@equal
def a_scaler_by_itself(script: Script) -> None:
    optimizer, scaler = script.sgd(), script.scaler()
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(script.loss(step)).backward()
        scaler.step(optimizer)
        scaler.update()


# -- hooks -------------------------------------------------------------------------------------------------


@equal
def a_hook_after_the_exchange(script: Script) -> None:
    optimizer = script.sgd()
    if script.ranks:
        optimizer.register_synchronize_post_hook(lambda _: script.clip())
        script.steps()
    else:
        script.steps(script.clip)


@equal
def a_hook_for_all_gradients_before_the_exchange(script: Script) -> None:
    optimizer = script.sgd()
    if script.ranks:
        optimizer.register_synchronize_pre_hook(lambda _: script.scale())
        script.steps()
    else:
        script.steps(script.scale)


@equal
def a_hook_for_one_gradient_before_the_exchange(script: Script) -> None:
    optimizer = script.sgd()
    if script.ranks:
        optimizer.register_gradient_hook(halve)
        script.steps()
    else:
        script.steps(script.scale)


@equal
def a_step_hook_of_the_optimizer(script: Script) -> None:
    script.sgd().register_step_pre_hook(lambda *_: script.clip())
    script.steps()


@equal
def hooks_of_tensors(script: Script) -> None:
    script.sgd()
    for parameter in script.model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    script.steps()


@equal
def a_hook_of_the_parameter_that_came_before_wrapping(script: Script) -> None:
    for parameter in script.model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.sgd()
    script.steps()


@equal
def a_hook_of_the_parameter_that_reads(script: Script) -> None:
    script.sgd()
    norms: list[torch.Tensor] = []
    for parameter in script.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm()))
    script.steps()
    assert norms


# -- other ways to come by gradients -----------------------------------------------------------------------


@equal
def clearing_in_place(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):
        script.optimizer.zero_grad(set_to_none=False)
        script.loss(step, step % 2).backward()
        script.optimizer.step()


@equal
def accumulation(script: Script) -> None:
    script.sgd(**({"backward_passes_per_step": 2} if script.ranks else {}))
    for step in range(STEPS):
        script.optimizer.zero_grad()
        script.loss(2 * step).backward()
        script.loss(2 * step + 1, 1).backward()
        script.optimizer.step()


@equal
def a_change_between_two_passes(script: Script) -> None:
    script.sgd(**({"backward_passes_per_step": 2} if script.ranks else {}))
    for step in range(STEPS):
        script.optimizer.zero_grad()
        script.loss(2 * step).backward()
        script.scale()
        script.loss(2 * step + 1).backward()
        script.optimizer.step()


@equal
def two_losses_over_one_graph(script: Script) -> None:
    script.sgd(**({"backward_passes_per_step": 2} if script.ranks else {}))
    for step in range(STEPS):
        script.optimizer.zero_grad()
        outputs = script.model(script.samples(step))
        outputs.pow(2).mean().backward(retain_graph=True)
        outputs.mean().backward()
        script.optimizer.step()


@equal
def a_penalty_on_gradients_of_inputs(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):
        script.optimizer.zero_grad()
        inputs = script.samples(step).requires_grad_()
        outputs = script.model(inputs).pow(2).sum(1)
        (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        (outputs + slopes.pow(2).sum(1)).mean().backward()
        script.optimizer.step()


@equal
def a_closure(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            script.optimizer.zero_grad()
            loss = script.loss(step)
            loss.backward()
            return loss

        script.optimizer.step(closure)


@equal
def a_closure_called_many_times(script: Script) -> None:
    parameters = [*script.model.body.parameters(), *script.model.heads[0].parameters()]
    script.wrap(torch.optim.LBFGS(parameters, lr=0.1, max_iter=3))
    a_few = functools.partial(script.loss, 0)

    def closure() -> torch.Tensor:
        script.optimizer.zero_grad()
        loss = a_few()
        loss.backward()
        return loss

    for _ in range(2):
        script.optimizer.step(closure)


@equal
def gradients_by_hand(script: Script) -> None:
    script.sgd()
    used = [*script.model.body.parameters(), *script.model.heads[0].parameters()]
    for step in range(STEPS):
        script.optimizer.zero_grad()
        for parameter, gradient in zip(used, torch.autograd.grad(script.loss(step), used), strict=True):
            parameter.grad = gradient
        script.optimizer.step()


@equal
def a_part_that_is_detached(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):
        script.optimizer.zero_grad()
        inputs = script.samples(step)
        outputs = script.model.heads[0](
            script.model.body(inputs).detach() if step % 2 else script.model.body(inputs)
        )
        outputs.pow(2).mean().backward()
        script.optimizer.step()


# -- parameters that are used here and there ---------------------------------------------------------------


def step_before_backward(script: Script, make: Make, **options: Any) -> None:
    optimizer = script.wrap(make(script.model.parameters()), **options)
    for _ in range(2):
        optimizer.step()
    script.steps()


def heads_take_turns(script: Script, make: Make, **options: Any) -> None:
    optimizer = script.wrap(make(script.model.parameters()), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        script.loss(step, step % 2).backward()
        optimizer.step()


def heads_by_rank(script: Script, make: Make, **options: Any) -> None:
    """Samples of even ranks go through one head, those of odd ranks through the other."""
    optimizer = script.wrap(make(script.model.parameters()), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        samples = script.samples(step)
        if script.ranks:
            loss = script.model(samples, hvd.rank() % 2).pow(2).mean()
        else:
            parts = [script.model(part, number % 2) for number, part in enumerate(samples.split(SHARE))]
            loss = torch.cat(parts).pow(2).mean()
        loss.backward()
        optimizer.step()


MAKERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3, fused=True),
    "nesterov_foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
}
WAYS = (step_before_backward, heads_take_turns, heads_by_rank)
for each_way in WAYS:
    for maker, make in MAKERS.items():
        EQUAL[f"{each_way.__name__}_{maker}"] = functools.partial(each_way, make=make)


@equal
def heads_by_rank_in_groups(script: Script) -> None:
    heads_by_rank(script, MAKERS["adamw_foreach"], **({"groups": 2} if script.ranks else {}))


@equal
def heads_take_turns_in_one_group(script: Script) -> None:
    heads_take_turns(script, MAKERS["adamw_foreach"], **({"groups": 1} if script.ranks else {}))


@equal
def freezing_and_unfreezing(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):
        script.model.body.requires_grad_(step % 2 == 0)
        script.optimizer.zero_grad()
        script.loss(step).backward()
        script.optimizer.step()


@equal
def unfreezing_what_was_frozen_when_wrapped(script: Script) -> None:
    script.model.body.requires_grad_(False)
    script.sgd()
    for step in range(STEPS):
        script.model.body.requires_grad_(step > 1)
        script.optimizer.zero_grad()
        script.loss(step).backward()
        script.optimizer.step()


@equal
def a_gradient_assigned_to_a_frozen_parameter(script: Script) -> None:
    script.model.body.requires_grad_(False)
    script.sgd()
    for step in range(STEPS):
        script.optimizer.zero_grad()
        script.loss(step).backward()
        script.model.body.bias.grad = script.samples(step).mean(0)[:3]
        script.optimizer.step()


# -- other parameters than those that were wrapped ---------------------------------------------------------


def replacing(script: Script, when: str, **options: Any) -> None:
    """Another head in place of one that the optimizer knows, as pruning and resizing do it."""
    script.sgd(**(options if script.ranks else {}))
    for step in range(STEPS):
        if step == 2 and when == "before":
            exchange_body(script)
        script.optimizer.zero_grad()
        script.loss(step).backward()
        if step == 2 and when == "after":
            exchange_body(script)
            script.loss(step).backward()
        script.optimizer.step()


def exchange_body(script: Script) -> None:
    model, optimizer = script.model, script.optimizer
    for name in ("weight", "bias"):
        old = getattr(model.body, name)
        new = torch.nn.Parameter(old.detach() * 0.5)
        for group in optimizer.param_groups:
            group["params"] = [new if each is old else each for each in group["params"]]
        optimizer.state.pop(old, None)
        setattr(model.body, name, new)


EQUAL["replacing_before_backward"] = functools.partial(replacing, when="before")
EQUAL["replacing_in_groups"] = functools.partial(replacing, when="before", groups=2)
EQUAL["replacing_without_names"] = functools.partial(replacing, when="before", named_parameters=None)


@equal
def replacing_in_the_list_of_the_group(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):
        if step == 1:
            old = script.model.body.weight
            new = torch.nn.Parameter(torch.cat([old.detach(), old.detach()], 1))  # of another shape
            script.optimizer.param_groups[0]["params"][0] = new
            script.model.body.weight = new
        script.optimizer.zero_grad()
        inputs = script.samples(step)
        outputs = script.model(torch.cat([inputs, inputs], 1) if step else inputs)
        outputs.pow(2).mean().backward()
        script.optimizer.step()


@equal
def removing_adding_and_reordering(script: Script) -> None:
    script.sgd()
    for step in range(STEPS):
        parameters = script.optimizer.param_groups[0]["params"]
        if step == 1:
            parameters.reverse()
        elif step == 2:
            parameters[:] = [each for each in parameters if each is not script.model.body.bias]
        elif step == 3:
            extra = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
            parameters.append(extra)
        script.optimizer.zero_grad()
        inputs = script.samples(step)
        if step == 3:
            inputs = inputs * extra
        script.model(inputs).pow(2).mean().backward()
        script.optimizer.step()


@equal
def another_group_without_asking(script: Script) -> None:
    script.wrap(torch.optim.SGD(script.model.heads[0].parameters(), lr=0.1))
    for step in range(STEPS):
        if step == 1:
            options = {**script.optimizer.param_groups[0], "params": list(script.model.body.parameters())}
            script.optimizer.param_groups.append(options)
        script.model.zero_grad()
        script.loss(step).backward()
        script.optimizer.step()


# -- complex numbers ---------------------------------------------------------------------------------------


def complex_parameters(script: Script, **options: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(2, 4, 4, generator=generator, dtype=torch.complex128, device="cpu")
    one, other = map(torch.nn.Parameter, drawn.to(torch.tensor(0).device))
    if script.ranks:
        options["named_parameters"] = [("one", one), ("other", other)]
    script.wrap(torch.optim.Adam([one, other], lr=0.05), **(options if script.ranks else {}))
    for step in range(STEPS):
        script.optimizer.zero_grad()
        outputs = script.samples(step).to(torch.complex128) @ one
        if step % 2 == 0:
            outputs = outputs @ other
        outputs.abs().pow(2).mean().backward()
        script.optimizer.step()


EQUAL["complex_parameters"] = complex_parameters
EQUAL["complex_parameters_in_a_group"] = functools.partial(complex_parameters, groups=1)

for on in (True, False):
    for changes, ways in ((False, EQUAL), (True, SEEN)):
        for name, way in ways.items():
            case = functools.partial(check, way, changes=changes, on=on)
            CASES.add_as(f"{name}_{'with' if on else 'without'}_overlap", case)
