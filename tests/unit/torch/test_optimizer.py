"""`DistributedOptimizer`: checks of arguments, counting of passes, and what it submits when."""

from __future__ import annotations

import gc
import inspect
import warnings
from typing import Any

import pytest
import torch
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.models import NAMES, backward, grads, two_layers, wrap

import horovod.torch as hvd
from horovod import _core
from horovod.gradients.settings import GradientSettings
from horovod.torch.autograd import collectives

pytestmark = pytest.mark.timeout(30)


def test_gradients_are_submitted_during_backward_and_in_place(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    backward(model)
    assert sorted(str(name) for name in engine.names) == sorted(NAMES)
    assert all(submission.mode == _core.ASYNCHRONOUS for submission in engine.log)
    by_name = dict(model.named_parameters())
    for submission in engine.log:
        gradient = by_name[str(submission.name)].grad
        assert gradient is not None
        assert submission.data == submission.out == [gradient.data_ptr()]
    local = grads(model)
    optimizer.synchronize()
    assert not engine.pending
    assert not collectives.table.pending
    for before, after in zip(local, grads(model), strict=True):
        assert torch.equal(after, 2 * before)


def test_step_moves_by_the_reduced_gradient(make_world: MakeWorld) -> None:
    make_world(3)
    model, plain = two_layers(), two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    backward(model)
    backward(plain)
    optimizer.step()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert q.grad is not None
        assert torch.allclose(p, q - 0.5 * 3 * q.grad)


def test_a_world_of_one_is_the_local_optimizer(make_world: MakeWorld) -> None:
    engine = make_world(1)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    optimizer.zero_grad()
    backward(model)
    optimizer.synchronize()
    optimizer.step()
    assert engine.log == []


def test_an_elastic_world_of_one_exchanges(make_world: MakeWorld) -> None:
    engine = make_world(1, elastic=True)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    optimizer.step()
    assert len(engine.log) == 4


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"compression": hvd.Compression.fp16}])
def test_parameters_that_no_rank_used_keep_no_gradient(
    options: dict[str, Any], make_world: MakeWorld
) -> None:
    """Every rank takes part in all operations all the same: others may have used other parameters."""
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, **options)
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    reduced = [submission for submission in engine.log if submission.kind == _core.ALLREDUCE]
    assert sum(len(submission.tensors) for submission in reduced) == len(NAMES)
    assert all(parameter.grad is not None for parameter in model[0].parameters())
    assert all(parameter.grad is None for parameter in model[1].parameters())


def test_step_without_backward_changes_nothing(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.5), model.named_parameters()
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    assert len(engine.log) == 4
    assert not optimizer.state
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_passes_are_summed_and_then_reduced_once(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, backward_passes_per_step=2)
    backward(model)
    once = grads(model)
    assert engine.log == []
    backward(model)
    assert len(engine.log) == 4
    optimizer.synchronize()
    for one, both in zip(once, grads(model), strict=True):
        assert torch.allclose(both, 2 * one)


def test_one_backward_too_many_is_an_assertion_error(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, backward_passes_per_step=2)
    backward(model)
    backward(model)
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        backward(model)
    optimizer.synchronize()


def test_an_early_step_reduces_what_there_is_and_rearms(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model, backward_passes_per_step=3)
    backward(model)
    optimizer.step()
    assert len(engine.log) == 4
    optimizer.zero_grad()
    backward(model)
    backward(model)
    assert len(engine.log) == 4
    backward(model)
    assert len(engine.log) == 8
    optimizer.step()


def test_the_number_of_passes_can_change(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    assert optimizer.backward_passes_per_step == 1
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    backward(model)
    assert engine.log == []
    backward(model)
    assert len(engine.log) == 4
    optimizer.step()


def test_zero_grad_between_backward_and_step_is_an_assertion_error(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, backward_passes_per_step=2)
    optimizer.zero_grad()
    backward(model)
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    backward(model)
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.count_nonzero(g) == 0 for g in grads(model))


def test_step_after_synchronize_reduces_again_and_warns_once(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    optimizer.synchronize()
    with pytest.warns(
        UserWarning, match=r"optimizer.step\(\) called without optimizer.skip_synchronize"
    ) as seen:
        optimizer.step()
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert len(engine.log) == 8


def test_skip_synchronize_updates_locally(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    backward(model)
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
        assert len(engine.log) == 4
        with pytest.raises(RuntimeError, match="inside"), optimizer.skip_synchronize():
            raise RuntimeError("inside")
        optimizer.step()
    assert len(engine.log) == 8


def test_step_returns_the_value_of_the_closure(make_world: MakeWorld) -> None:
    make_world(2)
    optimizer = wrap(two_layers())
    assert optimizer.step() is None
    assert optimizer.step(lambda: 7.0) == 7.0


def test_step_hooks_run_once_and_see_reduced_gradients(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum)
    backward(model)
    local = grads(model)
    seen: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: seen.extend(grads(model)))
    optimizer.step()
    assert len(seen) == 4
    assert all(torch.equal(a, 2 * b) for a, b in zip(seen, local, strict=True))


def test_a_failed_exchange_rearms_the_optimizer(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    engine.failing.add("0.bias")
    backward(model)
    with pytest.raises(hvd.HorovodInternalError):
        optimizer.step()
    assert not collectives.table.pending
    engine.failing.clear()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def test_load_state_dict_drops_what_is_in_flight(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    state = optimizer.state_dict()
    backward(model)
    optimizer.load_state_dict(state)
    assert not engine.pending
    assert not collectives.table.pending
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def test_an_optimizer_that_was_thrown_away_exchanges_nothing(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    optimizer = wrap(model)
    del optimizer
    gc.collect()
    again = wrap(model)
    backward(model)
    assert len(engine.log) == 4
    again.step()


def test_the_class_is_a_subclass_with_the_same_name_and_options(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    original = torch.optim.AdamW(model.parameters(), lr=0.3, weight_decay=0.2)
    optimizer = hvd.DistributedOptimizer(
        original, named_parameters=model.named_parameters(), sparse_as_dense=True
    )
    assert torch.optim.AdamW in type(optimizer).__mro__
    assert type(optimizer).__name__ == "AdamW"
    assert type(optimizer).__module__ == "horovod.torch.optimizer"
    assert optimizer.param_groups[0] is original.param_groups[0]
    assert optimizer.defaults["lr"] == 0.3
    assert not optimizer.state
    assert optimizer.op == hvd.Average
    assert optimizer.gradient_predivide_factor == 1.0
    assert optimizer.sparse_as_dense is True
    assert optimizer.process_set is hvd.global_process_set
    assert [optimizer._parameter_names[p] for p in model.parameters()] == NAMES
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    assert original.param_groups[0]["lr"] == pytest.approx(0.03)


def test_generated_names_are_unique_over_param_groups(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    inner = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner)
    expected = [f"allreduce.noname.{i}.{j}" for i in range(2) for j in range(2)]
    assert [optimizer._parameter_names[p] for p in model.parameters()] == expected
    backward(model)
    optimizer.step()
    names = sorted(str(name) for name in engine.names)
    assert len(set(names)) == 4
    assert [name.rsplit(".", 1)[0] for name in names] == expected


def test_optimizers_without_names_do_not_collide(make_world: MakeWorld) -> None:
    engine = make_world(2)
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    optimizers: list[Any] = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)) for model in (first, second)
    ]
    second(first(torch.ones(1, 3))).sum().backward()
    assert len(engine.pending) == 4
    for optimizer in optimizers:
        optimizer.step()


def test_equal_names_of_two_optimizers_are_an_error_that_says_what_to_do(make_world: MakeWorld) -> None:
    make_world(2)
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizers = [wrap(first), wrap(second)]
    with pytest.raises(ValueError, match=r"another optimizer.*names of its own"):
        second(first(torch.ones(1, 2))).sum().backward()
    for optimizer in optimizers:
        optimizer.load_state_dict(optimizer.state_dict())


def test_a_wrapped_optimizer_cannot_be_wrapped_again(make_world: MakeWorld) -> None:
    make_world(2)
    with pytest.raises(ValueError, match="DistributedOptimizer already"):
        hvd.DistributedOptimizer(wrap(two_layers()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"named_parameters": ["a", "b"]}, "tuples"),
        ({"named_parameters": two_layers()}, "tuples"),
        ({"named_parameters": two_layers().named_parameters}, "tuples"),
        ({"named_parameters": [("a", torch.ones(1), 3)]}, "tuples"),
        ({"named_parameters": [(0, torch.ones(1))]}, "tuples"),
        ({"groups": 0}, "groups"),
        ({"groups": -1}, "groups"),
        ({"groups": [["a"]]}, "groups"),
    ],
)
def test_wrong_arguments_are_value_errors(
    options: dict[str, Any], message: str, make_world: MakeWorld
) -> None:
    make_world(2)
    with pytest.raises(ValueError, match=message):
        wrap(two_layers(), **options)


@pytest.mark.parametrize(
    "others", [{"op": hvd.Sum}, {"op": hvd.Adasum}, {"op": hvd.Average, "gradient_predivide_factor": 2.0}]
)
def test_every_argument_arrives(
    others: dict[str, Any], make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`DistributedOptimizer` hands on what it finds in its ``locals()``: a parameter of another name would be
    lost."""
    make_world(2)
    values: dict[str, Any] = {
        "compression": hvd.Compression.fp16,
        "backward_passes_per_step": 3,
        "groups": 2,
        "sparse_as_dense": True,
        "process_set": hvd.global_process_set,
        **others,
    }
    made: list[GradientSettings] = []
    checked = GradientSettings.__post_init__

    def seen(settings: GradientSettings) -> None:
        checked(settings)
        made.append(settings)

    monkeypatch.setattr(GradientSettings, "__post_init__", seen)
    parameters = inspect.signature(hvd.DistributedOptimizer).parameters.keys()
    no_settings = {"optimizer", "named_parameters", "num_groups", "gradient_predivide_factor"}
    assert parameters - values.keys() <= no_settings
    wrap(two_layers(), **values)
    if values["op"] == hvd.Adasum:
        del values["groups"]  # has no effect there
    assert vars(made[-1]) == vars(GradientSettings()) | values


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (torch.nn.Linear(1, 1), "got a Linear: wrap the optimizer, not the model"),
        ("sgd", "got 'sgd': it wraps an optimizer of PyTorch"),
        (torch.optim.SGD, "got the class SGD: it wraps an optimizer"),
        ([torch.nn.Parameter(torch.ones(1))], "got a list: it wraps an optimizer"),
    ],
)
def test_what_is_no_optimizer_is_refused_with_the_line_to_write(
    given: Any, what: str, make_world: MakeWorld
) -> None:
    make_world(2)
    with pytest.raises(ValueError, match=what) as caught:
        hvd.DistributedOptimizer(given)
    line = str(caught.value).partition("Write ")[2]
    scope: dict[str, Any] = {"hvd": hvd, "torch": torch, "model": two_layers()}
    exec(line, scope)
    assert isinstance(scope["optimizer"], torch.optim.SGD)


def test_one_gradient_is_reduced_at_once_by_hand(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    optimizer = wrap(model, op=hvd.Sum, compression=hvd.Compression.fp16)
    weight = next(model.parameters())
    weight.grad = torch.full_like(weight, 3.0)
    handle, context = optimizer._allreduce_grad_async(weight)
    reduced = hvd.Compression.fp16.decompress(hvd.synchronize(handle), context)
    assert reduced.dtype == torch.float32
    assert torch.equal(reduced, torch.full_like(weight, 6.0))


def test_duplicate_names_are_found_even_before_init(no_world: None) -> None:
    model = two_layers()
    pairs = [("same", p) for p in model.parameters()]
    with pytest.raises(ValueError, match=r"unique.*same"):
        wrap(model, named_parameters=pairs)


def test_all_parameters_need_names_but_extra_names_are_fine(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    with pytest.raises(ValueError, match="2 parameters of the optimizer were not named"):
        wrap(model, named_parameters=list(model.named_parameters())[:2])
    other = [("other", torch.nn.Parameter(torch.ones(1)))]
    wrap(model, named_parameters=list(model.named_parameters()) + other)


def test_a_parameter_in_two_groups_is_a_value_error(make_world: MakeWorld) -> None:
    make_world(2)
    model = two_layers()
    with pytest.raises(ValueError, match="once"):
        wrap(model, groups=[[model[0].weight, model[1].weight], [model[1].weight]])


def test_num_groups_is_deprecated(make_world: MakeWorld) -> None:
    engine = make_world(2)
    model = two_layers()
    with pytest.warns(DeprecationWarning, match="num_groups"):
        optimizer = wrap(model, num_groups=2)
    engine.log.clear()
    backward(model)
    optimizer.step()
    assert [submission.grouped for submission in engine.log] == [True, True]
