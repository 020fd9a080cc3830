"""What `horovod.torch` refuses, and what it hands to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.torch.conftest import MakeWorld

import horovod.torch as hvd
from horovod import _core
from horovod.collectives.base import explained
from horovod.common.basics import HorovodBasics
from horovod.errors import NotInitializedError
from horovod.torch.frontend import _refusal

pytestmark = pytest.mark.timeout(30)

BLOCKING: dict[str, Callable[[Any], Any]] = {
    "allreduce": hvd.allreduce,
    "allreduce_": hvd.allreduce_,
    "allreduce_async": hvd.allreduce_async,
    "allreduce_async_": hvd.allreduce_async_,
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([torch.ones(1), t]),
    "grouped_allreduce_": lambda t: hvd.grouped_allreduce_([torch.ones(1), t]),
    "grouped_allreduce_async": lambda t: hvd.grouped_allreduce_async([torch.ones(1), t]),
    "grouped_allreduce_async_": lambda t: hvd.grouped_allreduce_async_([torch.ones(1), t]),
    "allgather": hvd.allgather,
    "allgather_async": hvd.allgather_async,
    "grouped_allgather": lambda t: hvd.grouped_allgather([torch.ones(1), t]),
    "grouped_allgather_async": lambda t: hvd.grouped_allgather_async([torch.ones(1), t]),
    "broadcast": lambda t: hvd.broadcast(t, 0),
    "broadcast_": lambda t: hvd.broadcast_(t, 0),
    "broadcast_async": lambda t: hvd.broadcast_async(t, 0),
    "broadcast_async_": lambda t: hvd.broadcast_async_(t, 0),
    "alltoall": lambda t: hvd.alltoall(t, torch.tensor([], dtype=torch.int32)),
    "alltoall_async": lambda t: hvd.alltoall_async(t, torch.tensor([], dtype=torch.int32)),
    "reduce": lambda t: hvd.reduce(t, 0),
    "reduce_": lambda t: hvd.reduce_(t, 0),
    "reduce_async": lambda t: hvd.reduce_async(t, 0),
    "reduce_async_": lambda t: hvd.reduce_async_(t, 0),
    "grouped_reduce": lambda t: hvd.grouped_reduce([torch.ones(1), t], 0),
    "grouped_reduce_": lambda t: hvd.grouped_reduce_([torch.ones(1), t], 0),
    "grouped_reduce_async": lambda t: hvd.grouped_reduce_async([torch.ones(1), t], 0),
    "grouped_reduce_async_": lambda t: hvd.grouped_reduce_async_([torch.ones(1), t], 0),
    "reducescatter": hvd.reducescatter,
    "reducescatter_async": hvd.reducescatter_async,
    "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([torch.ones(1), t]),
    "grouped_reducescatter_async": lambda t: hvd.grouped_reducescatter_async([torch.ones(1), t]),
}
REDUCING = {name: call for name, call in BLOCKING.items() if "reduce" in name}
AVERAGING = {name: call for name, call in REDUCING.items() if "allreduce" in name}
GROUPED = {
    "grouped_allreduce": hvd.grouped_allreduce,
    "grouped_allreduce_async": hvd.grouped_allreduce_async,
    "grouped_allgather": hvd.grouped_allgather,
    "grouped_allgather_async": hvd.grouped_allgather_async,
    "grouped_reduce": lambda ts: hvd.grouped_reduce(ts, 0),
    "grouped_reduce_async": lambda ts: hvd.grouped_reduce_async(ts, 0),
    "grouped_reducescatter": hvd.grouped_reducescatter,
    "grouped_reducescatter_async": hvd.grouped_reducescatter_async,
}


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
def test_collectives_before_init_raise_what_size_raises(call: Callable[[Any], Any], no_world: None) -> None:
    with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)\.") as info:
        call(torch.ones(3))
    with pytest.raises(ValueError) as of_size:
        hvd.size()
    assert type(info.value) is type(of_size.value)
    # At that one elastic loops would try again, for ever.
    assert not isinstance(info.value, hvd.HorovodInternalError)


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
def test_what_to_do_with_arrays(call: Callable[[Any], Any], make_world: MakeWorld) -> None:
    engine = make_world(2)
    with pytest.raises(ValueError, match=r"got numpy\.ndarray\. Pass torch\.from_numpy\(array\)"):
        call(np.ones(3, np.float32))
    assert engine.log == []


def test_what_to_do_with_arrays_that_are_compressed_or_sparse(make_world: MakeWorld) -> None:
    make_world(2)
    array: Any = np.ones(3)
    for call in (
        lambda: hvd.allreduce(array, compression=hvd.Compression.fp16),
        lambda: hvd.grouped_allreduce([array], compression=hvd.Compression.bf16),
        lambda: hvd.sparse_allreduce_async(array, "array", hvd.Sum),
        lambda: hvd.broadcast_parameters([array], 0),
    ):
        with pytest.raises(ValueError, match=r"torch\.from_numpy\(array\)"):
            call()


@pytest.mark.parametrize(
    ("op", "remedy"),
    [
        ("sum", r"write op=hvd\.Sum\."),
        ("mean", r"write op=hvd\.Average\."),
        (torch.distributed.ReduceOp.SUM, r"write op=hvd\.Sum\."),
        ("all", r"hvd\.Max, hvd\.Product\."),
        (1.0, r"hvd\.Average, hvd\.Sum, "),
    ],
)
def test_reductions_by_other_names(op: Any, remedy: str, make_world: MakeWorld) -> None:
    """PyTorch's ``ReduceOp.SUM`` is 0 as a number, which would be an average here."""
    engine = make_world(2)
    ones, model = torch.ones(2), torch.nn.Linear(1, 1)
    for call in (
        lambda: hvd.allreduce(ones, op=op),
        lambda: hvd.allreduce_(ones, op=op),
        lambda: hvd.allreduce_async(ones, op=op),
        lambda: hvd.grouped_allreduce([ones], op=op),
        lambda: hvd.reduce(ones, 0, op=op),
        lambda: hvd.reducescatter(ones, op=op),
        lambda: hvd.sparse_allreduce_async(ones.to_sparse(), "s", op),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=op),
    ):
        with pytest.raises(ValueError, match=remedy):
            call()
    assert engine.log == []


def test_numbers_of_numpy_are_numbers(make_world: MakeWorld) -> None:
    make_world(2)
    assert hvd.allreduce(torch.ones(2), op=np.int64(hvd.Sum)).tolist() == [2, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("process_set", [[0, 1], 0, "world"])
def test_what_is_no_process_set(process_set: Any, make_world: MakeWorld) -> None:
    make_world(2)
    with pytest.raises(TypeError, match=r"process_set must be a hvd\.ProcessSet, got"):
        hvd.allreduce(torch.ones(2), process_set=process_set)


@pytest.mark.parametrize(
    "call",
    [
        hvd.size,
        hvd.rank,
        hvd.local_size,
        hvd.local_rank,
        hvd.cross_size,
        hvd.cross_rank,
        hvd.mpi_ops.is_homogeneous,
        hvd.mpi_threads_supported,
        lambda: hvd.broadcast_object({}),
        lambda: hvd.allgather_object({}),
        lambda: hvd.alltoall(torch.ones(2)),
        lambda: hvd.alltoall_async(torch.ones(2)),
        lambda: hvd.alltoall(torch.ones(2), [2]),
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum),
        lambda: hvd.grouped_allreduce_async_([torch.ones(2)], op=hvd.Adasum),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)),
    ],
)
def test_questions_about_the_world_before_init_raise_value_error(
    call: Callable[[], Any], no_world: None
) -> None:
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("call", [hvd.barrier, hvd.join])
def test_barrier_and_join_before_init_raise_what_size_raises(call: Callable[[], Any], no_world: None) -> None:
    with pytest.raises(NotInitializedError):
        call()


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
def test_non_contiguous_tensors_are_refused(call: Callable[[Any], Any], make_world: MakeWorld) -> None:
    engine = make_world(2)
    with pytest.raises(ValueError, match="required to be contiguous"):
        call(torch.ones(3, 4).t())
    assert engine.log == []


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
def test_what_lies_in_memory_with_the_other_sign_is_refused(
    call: Callable[[Any], Any], make_world: MakeWorld
) -> None:
    engine = make_world(2)
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_contiguous()
    with pytest.raises(ValueError, match="resolve_neg"):
        call(negated)
    assert engine.log == []


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
def test_zeros_without_memory_are_refused(call: Callable[[Any], Any], make_world: MakeWorld) -> None:
    engine = make_world(2)
    with pytest.raises(ValueError, match="no memory of its own"):
        call(torch._efficientzerotensor(4))
    assert engine.log == []


IN_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "allreduce_": hvd.allreduce_,
    "allreduce_async_": lambda t: hvd.synchronize(hvd.allreduce_async_(t)),
    "grouped_allreduce_": lambda t: hvd.grouped_allreduce_([t]),
    "grouped_allreduce_async_": lambda t: hvd.synchronize(hvd.grouped_allreduce_async_([t])),
    "broadcast_": lambda t: hvd.broadcast_(t, 0),
    "broadcast_async_": lambda t: hvd.synchronize(hvd.broadcast_async_(t, 0)),
}


@pytest.mark.parametrize("call", IN_PLACE.values(), ids=IN_PLACE)
def test_autograd_knows_what_was_changed_in_place(
    call: Callable[[torch.Tensor], Any], make_world: MakeWorld
) -> None:
    make_world(2)
    weight = torch.ones(3, requires_grad=True)
    doubled = weight * 2
    squared = doubled * doubled
    call(doubled)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
@pytest.mark.parametrize(
    "tensor",
    [torch.empty(2, dtype=torch.bits8), torch.eye(3).to_sparse()],
    ids=["bits8", "sparse"],
)
def test_unknown_types_are_refused(
    call: Callable[[Any], Any], tensor: torch.Tensor, make_world: MakeWorld
) -> None:
    make_world(2)
    with pytest.raises(ValueError, match=r"Tensor type .* is not supported"):
        call(tensor)


def test_tensors_elsewhere_than_in_host_memory_are_refused() -> None:
    class Elsewhere(torch.Tensor):
        is_cpu = False
        device = torch.device("hpu", 0)

    refusal = _refusal(torch.ones(2).as_subclass(Elsewhere))
    assert isinstance(refusal, hvd.HorovodInternalError)
    assert not refusal.recoverable
    assert "Tensors on device hpu:0 are not supported yet" in str(refusal)


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING)
def test_tensors_without_values_are_refused(call: Callable[[Any], Any], make_world: MakeWorld) -> None:
    make_world(2)
    with pytest.raises(ValueError, match=r"on device meta: it has no values\. Give it some first"):
        call(torch.ones(2, device="meta"))


@pytest.mark.parametrize("call", AVERAGING.values(), ids=AVERAGING)
def test_average_and_op_exclude_each_other(call: Callable[..., Any], make_world: MakeWorld) -> None:
    make_world(2)
    function = getattr(hvd, next(name for name, c in REDUCING.items() if c is call))
    argument: Any = [torch.ones(1)] if "grouped" in function.__name__ else torch.ones(1)
    with pytest.raises(ValueError, match="op parameter supersedes average"):
        function(argument, average=True, op=hvd.Average)
    with pytest.warns(DeprecationWarning, match="average") as caught:
        function(argument, average=False)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("call", AVERAGING.values(), ids=AVERAGING)
def test_the_number_of_a_reduction_is_not_taken_for_average(
    call: Callable[..., Any], make_world: MakeWorld
) -> None:
    """`allreduce(tensor, hvd.Sum)` would be an average, as 1 is true, and `hvd.Average` a sum."""
    engine = make_world(2)
    function = getattr(hvd, next(name for name, c in REDUCING.items() if c is call))
    argument: Any = [torch.ones(1)] if "grouped" in function.__name__ else torch.ones(1)
    for op in (hvd.Sum, hvd.Average, "loss"):
        with pytest.raises(ValueError, match=f"average={op!r} is neither True nor False. .* op=hvd.Sum"):
            function(argument, op)
    assert engine.log == []
    with pytest.warns(DeprecationWarning, match="average"):
        function(argument, np.bool_(True))


@pytest.mark.parametrize("given", ["fp16", None, hvd.Compression, torch.float16])
def test_what_does_not_compress_is_refused_with_what_to_write(given: Any, make_world: MakeWorld) -> None:
    engine = make_world(2)
    for call in (
        lambda: hvd.allreduce(torch.ones(1), compression=given),
        lambda: hvd.grouped_allreduce([torch.ones(1)], compression=given),
        lambda: hvd.reducescatter(torch.ones(2), compression=given),
        lambda: hvd.grouped_reducescatter([torch.ones(2)], compression=given),
    ):
        with pytest.raises(ValueError, match=r"does not compress\. Write compression=hvd\.Compression\.fp16"):
            call()
    assert engine.log == []


def test_a_factor_that_no_float_can_hold_is_refused() -> None:
    refused = explained(TypeError("C++"), hvd.Sum, 1.0, 10**400)
    assert str(refused).startswith("postscale_factor must be a number, got 1000")


@pytest.mark.parametrize("call", GROUPED.values(), ids=GROUPED)
def test_empty_groups_are_refused(call: Callable[..., Any], make_world: MakeWorld) -> None:
    make_world(2)
    with pytest.raises(ValueError, match="at least one tensor"):
        call([])


def test_allgather_of_a_scalar_is_refused_before_submission(make_world: MakeWorld) -> None:
    engine = make_world(2)
    with pytest.raises(IndexError):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(IndexError):
        hvd.grouped_allgather([torch.ones(1), torch.tensor(1.0)])
    assert engine.log == []


def calls_in(some: hvd.ProcessSet) -> list[Callable[[], Any]]:
    """Every collective, in the process set ``some``."""
    ones, floats = torch.ones(1), torch.ones(1, requires_grad=True)
    return [
        lambda: hvd.allreduce(ones, process_set=some),
        lambda: hvd.allreduce(floats, process_set=some),
        lambda: hvd.grouped_allreduce_async([ones], process_set=some),
        lambda: hvd.sparse_allreduce_async(ones.to_sparse(), "s", hvd.Average, some),
        lambda: hvd.allgather(ones, process_set=some),
        lambda: hvd.grouped_allgather([floats], process_set=some),
        lambda: hvd.broadcast(ones, 0, process_set=some),
        lambda: hvd.reduce(ones, 0, process_set=some),
        lambda: hvd.reduce(floats, 0, process_set=some),
        lambda: hvd.grouped_reduce([ones], 0, process_set=some),
        lambda: hvd.alltoall(ones, process_set=some),
        lambda: hvd.alltoall(floats, torch.tensor([1], dtype=torch.int32), process_set=some),
        lambda: hvd.alltoall_async(ones, [1], process_set=some),
        lambda: hvd.reducescatter(ones, process_set=some),
        lambda: hvd.reducescatter(floats, process_set=some),
        lambda: hvd.grouped_reducescatter([ones], process_set=some),
        lambda: hvd.barrier(process_set=some),
    ]


def test_foreign_process_sets_are_refused(make_world: MakeWorld) -> None:
    make_world(2)
    for call in calls_in(hvd.add_process_set([1])):
        with pytest.raises(ValueError, match="is not a member of the provided process set"):
            call()


def test_numbers_of_process_sets_that_do_not_exist_are_refused(make_world: MakeWorld) -> None:
    make_world(2)
    some = hvd.ProcessSet([0])
    some.process_set_id = 9
    for call in calls_in(some):
        with pytest.raises((ValueError, IndexError), match="does not exist, or has not been registered"):
            call()
    with pytest.raises(IndexError):
        hvd.barrier(some)


def test_the_process_set_reaches_the_engine(make_world: MakeWorld) -> None:
    engine = make_world(3)
    some = hvd.add_process_set([0, 2])
    for call in calls_in(some)[:10]:
        call()
    hvd.alltoall(torch.ones(2), process_set=some)
    hvd.reducescatter(torch.ones(2), process_set=some)
    assert {submission.process_set for submission in engine.log} == {1}


def test_sums_in_a_process_set_count_its_members(make_world: MakeWorld) -> None:
    make_world(3)
    some = hvd.add_process_set([0, 2])
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=some).item() == 2.0
    sparse = hvd.sparse_allreduce_async(torch.ones(1).to_sparse(), "s", hvd.Average, some)()
    assert sparse.to_dense().tolist() == [1.0]


def test_unregistered_process_sets_are_refused(make_world: MakeWorld) -> None:
    make_world(2)
    some = hvd.ProcessSet([0])
    for call in calls_in(some):
        with pytest.raises(TypeError, match="not registered"):
            call()


def test_slices_are_passed_with_their_offset(make_world: MakeWorld) -> None:
    engine = make_world(2)
    whole = torch.arange(12.0).reshape(3, 4)
    assert hvd.allreduce(whole[1], op=hvd.Sum).tolist() == [8.0, 10.0, 12.0, 14.0]
    assert engine.log[0].data == [whole.data_ptr() + 16]


def test_blocking_calls_say_that_somebody_waits(make_world: MakeWorld) -> None:
    engine = make_world(2)
    hvd.allreduce(torch.ones(1))
    hvd.allreduce_async(torch.ones(1))
    assert [submission.mode for submission in engine.log] == [_core.BLOCKING, _core.ASYNCHRONOUS]


def test_a_positional_compression_comes_before_op(make_world: MakeWorld) -> None:
    engine = make_world(2)
    result = hvd.allreduce(torch.ones(2), None, "x", hvd.Compression.fp16, hvd.Sum, 2.0, 0.5)
    assert result.dtype == torch.float32
    assert result.tolist() == [2.0, 2.0]
    assert engine.log[0].dtypes == [_core.FLOAT16]


def test_factors_and_op_reach_the_engine(make_world: MakeWorld) -> None:
    engine = make_world(2)
    hvd.allreduce_(torch.ones(1), op=hvd.Max, prescale_factor=0.5, postscale_factor=3, name="x")
    only = engine.log[0]
    assert (only.op, only.prescale, only.postscale, only.name) == (hvd.Max, 0.5, 3, "x")


def test_sparse_allreduce_names_its_two_gathers(make_world: MakeWorld) -> None:
    engine = make_world(2)
    sparse = torch.tensor([1.0, 0.0, 2.0, 0.0]).to_sparse()
    result = hvd.sparse_allreduce_async(sparse, name="s", op=hvd.Average)()
    assert sorted(str(name) for name in engine.names) == ["s.indices", "s.values"]
    assert not result.is_coalesced()
    assert result.to_dense().tolist() == [1.0, 0.0, 2.0, 0.0]
    summed = hvd.sparse_allreduce_async(sparse, None, hvd.Sum)()
    assert engine.names[-1] in ("None.indices", "None.values")
    assert summed.to_dense().tolist() == [2.0, 0.0, 4.0, 0.0]


def test_sparse_averages_of_integers_stay_integers(make_world: MakeWorld) -> None:
    make_world(2)
    result = hvd.sparse_allreduce_async(torch.tensor([-3, 0]).to_sparse(), "i", hvd.Average)()
    assert result.dtype == torch.int64
    assert result._values().tolist() == [-1, -1]


def test_a_sparse_allreduce_that_is_refused_submits_nothing(make_world: MakeWorld) -> None:
    engine = make_world(2)
    with pytest.raises(ValueError):
        hvd.sparse_allreduce_async(torch.ones(2), "x", hvd.Sum)
    assert engine.log == []


def test_sparse_allreduce_without_entries(make_world: MakeWorld) -> None:
    make_world(2)
    empty = torch.zeros(4, 3).to_sparse(1)
    result = hvd.sparse_allreduce_async(empty, "e", hvd.Sum)()
    assert result.shape == (4, 3)
    assert result._nnz() == 0


def test_broadcast_parameters_refuses_generators(make_world: MakeWorld) -> None:
    make_world(2)
    model = torch.nn.Linear(2, 2)
    for params in (model.parameters(), model.named_parameters(), 3):
        with pytest.raises(ValueError, match="invalid params of type"):
            hvd.broadcast_parameters(params, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"epoch": 3}, "is no tensor but a dict"),
        (torch.eye(3).to_sparse(), "has the layout torch.sparse_coo"),
        (torch.ones(3).expand(2, 3), "is expanded"),
    ],
)
def test_broadcast_parameters_names_what_it_cannot_overwrite(
    make_world: MakeWorld, entry: Any, problem: str
) -> None:
    world = make_world(2)
    with pytest.raises(ValueError, match=f"entry head._extra_state .*{problem}"):
        hvd.broadcast_parameters({"a": torch.ones(1), "head._extra_state": entry}, 0)
    assert not world.log, "nothing is on its way"


def test_broadcast_parameters_uses_sorted_names(make_world: MakeWorld) -> None:
    engine = make_world(2)
    hvd.broadcast_parameters({"b": torch.ones(1), "a": torch.ones(()), "n": None}, 0)
    hvd.broadcast_parameters([("z", torch.ones(1)), ("y", torch.ones(1))], 0)
    hvd.broadcast_parameters([torch.ones(1)], 0)
    assert engine.names == ["a", "b", "z", "y", None]
    with pytest.raises(ValueError):
        hvd.broadcast_parameters([torch.empty(1, dtype=torch.bits8)], 0)


def test_fp16_compression_leaves_integers_alone() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        small, context = hvd.Compression.fp16.compress(torch.ones(2, dtype=dtype))
        assert small.dtype == torch.float16
        back = hvd.Compression.fp16.decompress(small, context)
        assert back.dtype == dtype
        assert back.tolist() == [1.0, 1.0]
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        tensor = torch.ones(2, dtype=dtype)
        small, context = hvd.Compression.fp16.compress(tensor)
        assert small is tensor
        assert hvd.Compression.fp16.decompress(small, context) is tensor
    tensor = torch.ones(1)
    assert hvd.Compression.none.compress(tensor) == (tensor, None)


def test_exported_names_exist_and_is_homogeneous_is_not_among_them() -> None:
    names = vars(hvd)["__all__"]
    assert all(hasattr(hvd, name) for name in names)
    assert len(set(names)) == len(names)
    assert "is_homogeneous" not in names
    assert not hasattr(hvd, "is_homogeneous")
    assert isinstance(hvd.mpi_ops._basics, HorovodBasics)


def test_constants_are_plain_ints() -> None:
    constants = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
    assert constants == (0, 1, 2, 3, 4, 5)
    assert all(type(constant) is int for constant in constants)


ADASUM: dict[str, Callable[..., Any]] = {
    "allreduce": lambda t, **o: hvd.allreduce(t, op=hvd.Adasum, **o),
    "allreduce_async_": lambda t, **o: hvd.allreduce_async_(t, op=hvd.Adasum, **o),
    "grouped_allreduce": lambda t, **o: hvd.grouped_allreduce([t], op=hvd.Adasum, **o),
}


@pytest.mark.parametrize("call", ADASUM.values(), ids=ADASUM)
def test_what_adasum_does_not_support(call: Callable[..., Any], make_world: MakeWorld) -> None:
    engine = make_world(4)
    some = hvd.add_process_set([0, 1])
    with pytest.raises(NotImplementedError, match="process sets"):
        call(torch.ones(2), process_set=some)
    for dtype in (torch.int32, torch.uint8, torch.int16, torch.bool):
        with pytest.raises(ValueError, match="is not supported"):
            call(torch.ones(2, dtype=dtype))
    assert engine.log == []
    for dtype in (torch.float16, torch.float32, torch.float64):
        call(torch.ones(2, dtype=dtype))
    assert {submission.op for submission in engine.log} == {hvd.Adasum}
    make_world(3)
    with pytest.raises(NotImplementedError, match="power of two"):
        call(torch.ones(2))


def test_join_returns_the_number_of_the_last_rank(make_world: MakeWorld) -> None:
    make_world(3)
    assert hvd.join() == 2
    assert hvd.join(device=-1) == 2
