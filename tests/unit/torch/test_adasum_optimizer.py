"""`DistributedOptimizer(op=Adasum)`: the fake ranks hold the same, so their combined step is that of one."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, two_layers, wrap

import horovod.torch as hvd
from horovod import _core

pytestmark = pytest.mark.timeout(30)


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_changes_are_exchanged_during_backward_and_applied_in_step(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model, plain = two_layers(), two_layers()
    optimizer = wrap(model, op=hvd.Adasum)
    reference = torch.optim.SGD(plain.parameters(), lr=0.5)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters() if p.grad is not None)
    for _ in range(2):
        engine.log.clear()
        before = weights(model)
        optimizer.zero_grad()
        backward(model)
        assert {submission.op for submission in engine.log} == {_core.ADASUM}
        assert sorted(map(str, engine.names)) == sorted(NAMES)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        optimizer.synchronize()
        optimizer.step()
        reference.zero_grad()
        backward(plain)
        reference.step()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(p, q)


def test_each_parameter_steps_once_with_the_options_of_its_group(make_world: MakeWorld) -> None:
    make_world(4)
    model, plain = two_layers(), two_layers()

    def make(net: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 0.3}], lr=0.1
        )

    optimizer: Any = hvd.DistributedOptimizer(make(model), op=hvd.Adasum)
    reference = make(plain)
    for _ in range(3):
        for net, of in ((model, optimizer), (plain, reference)):
            of.zero_grad()
            backward(net)
            of.step()
    assert [state["step"].item() for state in optimizer.state.values()] == [3.0] * 4
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, q)


def test_step_hooks_run_once(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    backward(model)
    assert calls == []
    optimizer.step()
    assert calls == ["before", "after"]


def test_passes_and_their_checks(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum, backward_passes_per_step=2)
    backward(model)
    assert engine.log == []
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    backward(model)
    assert len(engine.log) == 4
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        backward(model)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    backward(model)
    assert len(engine.log) == 8
    optimizer.step()


def test_a_closure_is_evaluated_first_and_its_value_returned(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum)
    before = weights(model)
    loss = optimizer.step(lambda: backward(model))
    assert torch.equal(loss, two_layers()(torch.ones(4, 3)).sum())
    assert len(engine.log) == 4
    assert optimizer.step() is None
    assert not torch.equal(model[0].weight, before[0])


def test_unused_parameters_take_part(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum)
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert sorted(map(str, engine.names)) == sorted(NAMES)


def test_a_failed_exchange_leaves_the_weights(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum)
    before = weights(model)
    engine.failing.add("0.bias")
    backward(model)
    with pytest.raises(hvd.HorovodInternalError):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_graphs_that_were_kept_stay_valid(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum, backward_passes_per_step=1)
    kept = model(torch.ones(1, 3)).sum()
    backward(model)
    before = weights(model)
    torch.autograd.grad(kept, model[0].bias)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.fp16}])
def test_copies_and_compression(options: dict[str, Any], make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    other_model, other = copy.deepcopy((model, wrap(model, op=hvd.Adasum, **options)))
    backward(other_model)
    dtype = _core.FLOAT16 if options else _core.FLOAT32
    assert [submission.dtypes for submission in engine.log] == [[dtype]] * 4
    other.step()
    assert other.op == hvd.Adasum


def test_what_adasum_refuses(make_world: MakeWorld) -> None:
    make_world(3)
    with pytest.raises(NotImplementedError, match="power of two, not 3"):
        wrap(two_layers(), op=hvd.Adasum)
    make_world(2)
    with pytest.raises(NotImplementedError, match="process sets"):
        wrap(two_layers(), op=hvd.Adasum, process_set=hvd.ProcessSet([0]))
    optimizer = wrap(two_layers(), op=hvd.Adasum)
    with (
        pytest.raises(AssertionError, match="Skipping synchronization"),
        optimizer.skip_synchronize(),
    ):
        pass
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(two_layers().parameters()), op=hvd.Adasum)


def test_an_optimizer_that_is_gone_leaves_the_parameters_at_once(make_world: MakeWorld) -> None:
    """Without the collector of circles: a notebook makes the next one first."""
    make_world(2)
    model = two_layers()
    gc.disable()
    try:
        for _ in range(2):
            optimizer = wrap(model, op=hvd.Adasum)
            for _ in range(2):
                optimizer.zero_grad()
                backward(model)
                optimizer.step()
            gone = weakref.ref(optimizer)
            del optimizer
            assert gone() is None
    finally:
        gc.enable()


def test_one_rank_has_the_ordinary_optimizer(make_world: MakeWorld) -> None:
    engine = make_world(1)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Adasum)
    backward(model)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert engine.log == []


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_is_refused(fused: bool, make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, fused=fused), op=hvd.Adasum
    )
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(4, 3)).sum()).backward()
    for use in (scaler.unscale_, scaler.step):
        with pytest.raises(ValueError, match="cannot be used with op=Adasum"):
            use(optimizer)
