"""Whether gradients are handed over while backward still computes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, grads, two_layers, wrap

import horovod.torch as hvd
from horovod.errors import GradientChangedError
from horovod.runtime import lifecycle

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("setting", "cores", "together", "late"),
    [
        ("auto", 1.0, True, True),
        ("auto", 1.9, True, True),
        ("auto", 2.0, True, False),  # one computes, one is left
        ("auto", 1.0, False, False),
        ("1", 1.0, True, False),
        ("0", 9.0, False, True),
    ],
)
def test_gradients_are_handed_over_during_backward_unless_no_core_is_idle(
    setting: str,
    cores: float,
    together: bool,
    late: bool,
    make_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_world(2, overlap_gradients=setting)
    groups = [[0, 1]] if together else [[0], [1]]
    runtime = dataclasses.replace(lifecycle.current(), cores_per_rank=cores, groups=groups)
    monkeypatch.setattr(lifecycle, "current", lambda: runtime)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    model = two_layers()
    optimizer = wrap(model)
    for _ in range(2):
        engine.log.clear()
        backward(model)
        assert len(engine.log) == (0 if late else len(NAMES))
        with pytest.raises(AssertionError, match="race condition"):
            optimizer.zero_grad()
        optimizer.step()
        assert len({submission.name for submission in engine.log}) == len(engine.log) == len(NAMES)


@pytest.mark.parametrize("setting", ["0", "1"])
def test_what_is_changed_after_it_was_handed_over_is_named(setting: str, make_world: MakeWorld) -> None:
    engine = make_world(2, overlap_gradients=setting)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    first, second, third, _ = model.parameters()
    first.grad = None
    second.grad = torch.full_like(second, 5.0)
    third.grad.mul_(2.0)
    with pytest.raises(
        GradientChangedError, match=r"(?s)optimizer\.synchronize\(\)\n.*skip_synchronize"
    ) as caught:
        optimizer.step()
    assert list(caught.value.tensors) == NAMES[:3]
    # The others do not wait: this rank has taken part in everything.
    assert not engine.pending
    assert len(engine.log) == len(NAMES)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("setting", ["0", "1"])
def test_hooks_of_the_optimizer_may_change_gradients(setting: str, make_world: MakeWorld) -> None:
    make_world(2, overlap_gradients=setting)
    model, same = two_layers(), two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    optimizer.register_gradient_hook(lambda parameter: parameter.grad.mul_(0.5))
    backward(same)
    backward(model)
    optimizer.synchronize()
    assert all(torch.equal(g, local) for g, local in zip(grads(model), grads(same), strict=True))
