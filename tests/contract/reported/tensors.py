"""Reports about collectives on tensors."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.contract.world import Cases
from torch.autograd import forward_ad

import horovod.torch as hvd

CASES = Cases()


def everyone(value: Callable[[int], float]) -> float:
    return sum(value(rank) for rank in range(hvd.size()))


@CASES.add
def numbers_below_the_normal_ones_survive_whoever_adds_them() -> None:
    """Users of gevent and others: a library built with -ffast-math made the thread that imported it flush
    small numbers to zero, so ranks differed in their last bits."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tiny = torch.finfo(dtype).smallest_normal / 8
        for length in (5, 100_000):
            given = torch.full((length,), tiny, dtype=dtype)
            torch.set_flush_denormal(hvd.rank() == 0)
            try:
                total, mean = hvd.allreduce(given, op=hvd.Sum), hvd.allreduce(given)
            finally:
                torch.set_flush_denormal(False)
            assert torch.equal(total, given * hvd.size()), dtype
            assert torch.equal(mean, given), dtype


@CASES.add
def the_rounding_mode_of_a_thread_does_not_make_ranks_differ() -> None:
    """The same with a library that left another rounding mode behind."""
    upward, to_nearest = 0x800, 0
    libm = ctypes.CDLL("libm.so.6")
    given = torch.linspace(0.1, 1.0, 1000) * (hvd.rank() + 1)
    libm.fesetround(upward if hvd.rank() == 0 and os.uname().machine == "x86_64" else to_nearest)
    try:
        total = hvd.allreduce(given, op=hvd.Sum)
    finally:
        libm.fesetround(to_nearest)
    for other in hvd.allgather(total.unsqueeze(0)):
        assert torch.equal(other, total)


@CASES.add
def negative_zeros_keep_their_sign() -> None:
    """Array libraries: a sum that begins with +0 turns -0 into +0, and 1/x changes its sign."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = torch.full((7,), -0.0, dtype=dtype)
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max):
            assert torch.signbit(hvd.allreduce(given, op=op)).all(), (dtype, op)


@CASES.add
def a_nan_wins_wherever_it_is() -> None:
    """MLX: a minimum over ranks dropped NaN or kept it, depending on the rank that had it."""
    for holder in range(hvd.size()):
        given = torch.tensor([float("nan"), 1.0] if hvd.rank() == holder else [5.0, 2.0])
        for op, second in ((hvd.Min, 1.0), (hvd.Max, 2.0 if hvd.size() > 1 else 1.0)):
            result = hvd.allreduce(given, op=op)
            assert result[0].isnan(), (holder, op)
            assert result[1] == second


@CASES.add
def metrics_are_reduced_in_inference_mode() -> None:
    """PyTorch: tensors of inference mode have no version, and a reduction in place raised."""
    with torch.inference_mode():
        hits = torch.full((3,), float(hvd.rank()))
        total = hvd.allreduce(hits, op=hvd.Sum)
        hvd.allreduce_(hits, op=hvd.Sum)
        assert torch.equal(hits, total)
        assert total[0] == everyone(float)
        hvd.broadcast_(hits, 0)
        assert hvd.allgather(hits).shape == (3 * hvd.size(),)
    assert torch.equal(hvd.grouped_allreduce([hits, total])[1], total)
    with torch.inference_mode():
        network = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)


@CASES.add
def autocast_leaves_collectives_alone() -> None:
    """Accelerate: sums under autocast came back in 16 bits and had lost digits."""
    given = torch.full((3,), 1.2345678, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = hvd.allreduce(given)
        assert result.dtype == torch.float32
        assert torch.equal(result, given)
        result.sum().backward()
    assert given.grad is not None
    assert given.grad.dtype == torch.float32


@CASES.add
def a_wider_default_type_is_nobodys_problem() -> None:
    """PyTorch Lightning with double precision: helpers made in the default type met float32 elsewhere."""
    torch.set_default_dtype(torch.float64)
    try:
        layer = hvd.SyncBatchNorm(3)
        assert layer(torch.randn(4, 3)).dtype == torch.float64
        assert hvd.allreduce(torch.tensor(1.5)).dtype == torch.float64
        assert hvd.broadcast_object(1.5, 0) == 1.5
    finally:
        torch.set_default_dtype(torch.float32)


@CASES.add
def a_tangent_is_not_lost() -> None:
    """PyTorch: collectives were run on the values of dual numbers only, so derivatives in forward mode were
    zero."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        calls = (hvd.allreduce, hvd.allgather, lambda given: hvd.broadcast(given, 0), hvd.reducescatter)
        for call in (*calls, lambda given: hvd.grouped_allreduce([given])):
            with pytest.raises(NotImplementedError, match="jvp"):
                call(dual)
        assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]


@CASES.add
def tensors_without_values_are_refused_with_what_to_do() -> None:
    """Transformers with ``low_cpu_mem_usage``: parameters on the meta device were broadcast, and each rank
    got what lay in its memory."""
    network = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(ValueError, match="to_empty"):
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    with pytest.raises(ValueError, match="uninitialized parameter"):
        hvd.broadcast_parameters(torch.nn.LazyLinear(2).state_dict(), root_rank=0)


@CASES.add
def entries_that_are_no_tensors_are_named() -> None:
    """Transformer Engine: ``get_extra_state`` puts other things into ``state_dict()``."""

    class Extra(torch.nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"scale": 3}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(ValueError, match=r"_extra_state of what is to be broadcast is no tensor but a dict"):
        hvd.broadcast_parameters(Extra(2, 2).state_dict(), root_rank=0)


@CASES.add
def mapped_checkpoints_and_shared_weights_are_overwritten() -> None:
    """PyTorch: ``torch.load(mmap=True)`` and ``share_memory()`` give weights that lie in mapped files."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"w": torch.full((50_000,), float(hvd.rank()))}, f"{folder}/checkpoint.pt")
        state = torch.load(f"{folder}/checkpoint.pt", mmap=True)
        hvd.broadcast_parameters(state, root_rank=hvd.size() - 1)
        assert (state["w"] == hvd.size() - 1).all()
    network = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(network.weight, hvd.rank())
    network.share_memory()
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    assert (network.weight == 0).all()
    assert network.weight.is_shared()


@CASES.add
def views_of_one_tensor_are_reduced_at_the_same_time() -> None:
    """FairScale: halves of a flat buffer were reduced in place, and the second overwrote the first."""
    flat = torch.zeros(10)
    halves = {"low": flat[:5], "high": flat[5:]}
    halves["low"] += 1
    halves["high"] += 10
    handles = [hvd.allreduce_async_(half, op=hvd.Sum, name=name) for name, half in halves.items()]
    for handle in handles:
        hvd.synchronize(handle)
    assert flat.tolist() == [1.0 * hvd.size()] * 5 + [10.0 * hvd.size()] * 5


@CASES.add
def thousands_of_operations_are_outstanding_at_once() -> None:
    """Gloo and NCCL users: a loop that waited only at its end ran out of file descriptors or memory."""
    count = 5000
    handles = [
        hvd.allreduce_async(torch.full((2,), float(number)), op=hvd.Sum, name=f"outstanding.{number}")
        for number in range(count)
    ]
    sums = np.array([hvd.synchronize(handle)[0].item() for handle in handles])
    assert (sums == np.arange(count) * hvd.size()).all()


@CASES.add
def another_thread_may_use_the_world() -> None:
    """Jupyter, Ray: a world that was formed in one thread was unusable in the next."""
    hvd.shutdown()
    failures: list[BaseException] = []
    sums: list[float] = []

    def run(step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as failure:
            failures.append(failure)

    for step in (hvd.init, lambda: sums.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())):
        thread = threading.Thread(target=run, args=(step,))
        thread.start()
        thread.join()
    if not hvd.is_initialized():
        hvd.init()
    assert not failures
    assert sums == [hvd.size()]
