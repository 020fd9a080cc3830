"""One rank of a row: ``python -m tests.gpu.rank PROGRAM``. Rank 0 prints what it has seen, one line of JSON
behind ``FIGURE`` for each row.

``FARANDOLE_GPU_SMALL=1``: a few operations of small tensors, to try the programs themselves.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.gpu import place

# isort: split
import torch
from tests.gpu.bare import BareNccl
from tests.gpu.intervals import hidden_share, of_profile

import horovod.torch as hvd
from horovod.observe import data_paths

SMALL = os.environ.get("FARANDOLE_GPU_SMALL") == "1"
MIB = 1 << 20
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(run: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[run.__name__] = run
    return run


MISSING: list[str] = []
"""What was not there to be measured."""


def say(what: str, figure: str, value: float | None = None, **more: Any) -> None:
    """``more``: ``most`` or ``least``, the goal; ``wrong``: it has failed; ``missing``: nothing was run."""
    MISSING.extend([figure] * bool(more.get("missing")))
    if hvd.rank() == 0:
        print("FIGURE", json.dumps({"what": what, "figure": figure, "value": value, **more}), flush=True)


def way() -> str:
    """By what tensors have travelled so far."""
    paths = data_paths()
    taken = [path for path in paths if path in ("nccl", "peer") or path.startswith("staged")]
    return " and ".join(sorted(taken)) or "no way of a device"


def median_s(call: Callable[[], object], calls: int) -> float:
    """Of ``call`` and a wait for all that it has put on the device. The first ones are not counted."""
    times = []
    with place.nothing_between():
        for _ in range(3):
            call()
        place.synchronize()
        for _ in range(calls):
            begin = time.perf_counter()
            call()
            place.synchronize()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


# -- is it right? -------------------------------------------------------------------------------------------


@program
def load() -> None:
    """Collectives while another stream is full of kernels, and such that need what is computed there."""
    n, me = hvd.size(), hvd.rank()
    rounds, width = (5, 32) if SMALL else (300, 2048)
    sizes = (1, 1000, 70_000) if SMALL else (1, 1000, 300_000, 4_000_000)
    computing, communicating = place.new_stream(), place.new_stream()
    with place.use(computing):
        matrix = torch.eye(width) * 2
        product = torch.eye(width)
    with place.use(communicating):
        values = [torch.empty(size) for size in sizes]
    begin = time.perf_counter()
    for step in range(rounds):
        with place.use(computing):
            product = (product @ matrix).clamp(max=4.0)
        with place.use(communicating):
            for value in values:
                value.fill_(float(me + step))
            handles = [
                hvd.allreduce_async_(value, name=f"load.{i}", op=hvd.Sum) for i, value in enumerate(values)
            ]
            gathered = hvd.allgather(values[0] * 0 + me, name="load.rows")
            for handle in handles:
                hvd.synchronize(handle)
            total = float(n * step + n * (n - 1) // 2)
            wrong = sum((value != total).sum() for value in values)
            assert int(wrong) == 0, f"{int(wrong)} wrong elements in round {step}"
            assert gathered.tolist() == list(range(n))
        with place.use(computing):  # reduce what was computed on the stream that computes
            mean = hvd.allreduce(product[0, :1].contiguous(), name="load.product")
            product += (mean - product[0, 0]) * 0
    computing.synchronize()
    took = time.perf_counter() - begin
    assert float(product[0, 0]) == (4.0 if rounds > 1 else 2.0)
    count = rounds * (len(sizes) + 2)
    say("streams beside matrix products", f"{count} operations right in {took:.1f} s, by {way()}")


@program
def growth() -> None:
    """Memory of the device and of the host after many operations."""
    operations = 400 if SMALL else 10_000
    value, rows = torch.ones(3000), torch.ones(hvd.size(), 5)

    def work(steps: int) -> None:
        for step in range(steps):
            hvd.allreduce_(value, op=hvd.Max)
            hvd.allgather(rows)
            hvd.synchronize(hvd.allreduce_async(value[: 100 + step % 7].clone(), op=hvd.Sum))
            hvd.grouped_allreduce_([value, torch.ones(4)], op=hvd.Max)
            hvd.alltoall(rows)

    work(operations // 50)
    gc.collect()
    place.synchronize()
    device, host, files = place.memory_in_use(), _resident_bytes(), len(os.listdir("/proc/self/fd"))
    work(operations // 5)
    gc.collect()
    place.synchronize()
    device, host = place.memory_in_use() - device, _resident_bytes() - host
    files = len(os.listdir("/proc/self/fd")) - files
    most = 8 * MIB  # 840 bytes of each operation
    for what, grown in (("the device", device), ("the host", host)):
        # The stand-in never uses a page again: its device memory is in that of the host.
        goal = {"goal": f"<= {most / MIB:.1f} MiB", "wrong": grown > most}
        judged = {} if place.ON_FAKE and what == "the host" else goal
        say(
            f"growth of memory of {what} in {operations} operations",
            f"{grown / MIB:.1f} MiB",
            grown,
            **judged,
        )
    say("more open files", str(files), files, goal="<= 0", wrong=files > 0)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@program
def copies() -> None:
    """Every way that bytes are copied: for a checker of memory."""
    n = hvd.size()
    for count in (0, 1, 17, 4099, (2 * MIB) // 4 - 1, (2 * MIB) // 4 + 1, 3 * MIB):
        for dtype in (torch.float32, torch.bfloat16, torch.uint8):
            value = torch.ones(count, dtype=dtype)
            assert int((hvd.allreduce(value, op=hvd.Sum) != n).sum()) == 0
            assert hvd.allgather(value).shape == (n * count,)
            hvd.broadcast_(value, n - 1)
            hvd.reducescatter(value, op=hvd.Sum)
            if count % n == 0:
                hvd.alltoall(value)
        groups = hvd.grouped_allreduce([torch.ones(count), torch.ones(3)], op=hvd.Sum)
        assert int((groups[0] != n).sum()) == 0
    place.synchronize()
    say("copies of every collective", f"right, by {way()}")


# -- how fast is it? ----------------------------------------------------------------------------------------


@program
def beside_nccl() -> None:
    """An allreduce beside the bare call of NCCL, into another tensor, on the same stream."""
    bare = BareNccl(hvd.rank(), hvd.size(), lambda given: hvd.broadcast_object(given, 0))
    stream = place.new_stream()
    sizes = (4, 4096) if SMALL else (4, 4096, 65_536, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
    with place.use(stream):
        for size_bytes in sizes:
            value, out = torch.ones(size_bytes // 4), torch.empty(size_bytes // 4)
            calls = 5 if SMALL else 300 if size_bytes < 16 * MIB else 60
            ours = median_s(functools.partial(hvd.allreduce, value, name="beside", op=hvd.Sum), calls)
            theirs = median_s(functools.partial(bare.allreduce, value, out, stream), calls)
            more = ours - theirs
            text = (
                f"{ours * 1e6:.1f} us, bare {theirs * 1e6:.1f} us: {more * 1e6:+.1f} us, {more / theirs:+.1%}"
            )
            goal: dict[str, Any] = {}
            if size_bytes == 4:
                text_value, goal = more * 1e6, {"most": 10.0, "goal": "<= 10 us more"}
            else:
                text_value = 100 * more / theirs
                # Alone NCCL only copies: there is no exchange to compare with.
                if size_bytes >= MIB and hvd.size() > 1:
                    goal = {"most": 2.0, "goal": "<= 2 % more"}
            say(f"allreduce of {_size(size_bytes)} by {way()}", text, text_value, **goal)
        bare.close()


@program
def moves() -> None:
    """Collectives that move bytes, to compare the ways with each other: whether copies between peers win."""
    n = hvd.size()
    for size_bytes in (4096, 8 * MIB) if SMALL else (4096, 65_536, MIB, 16 * MIB, 128 * MIB):
        value = torch.ones(size_bytes // 4)
        calls = 3 if SMALL else 100 if size_bytes <= MIB else 20
        for what, call, moved in (
            ("allgather", functools.partial(hvd.allgather, value, name="moved"), n - 1),
            ("alltoall", functools.partial(hvd.alltoall, value, name="moved"), (n - 1) / n),
            ("broadcast", functools.partial(hvd.broadcast_, value, 0, name="moved"), 1),
        ):
            taken_s = median_s(call, calls)
            figure = f"{taken_s * 1e6:.1f} us, {size_bytes * moved / taken_s / 1e9:.2f} GB/s into a rank"
            say(f"{what} of {_size(size_bytes)} by {way()}", figure, taken_s * 1e6)


@program
def staged() -> None:
    """Staging alone beside copies between the device and pinned memory, both directions at once."""
    size_bytes = MIB if SMALL else 64 * MIB
    value = torch.ones(size_bytes // 4)
    ours = median_s(lambda: hvd.allreduce_(value, name="staged", op=hvd.Sum), 3 if SMALL else 20)
    there, back = place.Pinned(size_bytes), place.Pinned(size_bytes)
    other = torch.empty(size_bytes // 4)
    up, down = place.new_stream(), place.new_stream()

    def both() -> None:
        place.copy(there.address, value.data_ptr(), size_bytes, down)
        place.copy(other.data_ptr(), back.address, size_bytes, up)

    bare = median_s(both, 3 if SMALL else 20)
    place.synchronize()
    there.free()
    back.free()
    figure = f"{size_bytes / ours / 1e9:.2f} GB/s each way, memcpy {size_bytes / bare / 1e9:.2f} GB/s"
    say(
        f"{_size(size_bytes)} by {way()} beside pinned memcpy",
        f"{figure}: {bare / ours:.0%}",
        100 * bare / ours,
        least=85.0,
        goal=">= 85 %",
    )


def _model() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    width, layers = (16, 3) if SMALL else (2048, 12)
    parts = [torch.nn.Linear(width, width) for _ in range(layers)]
    return torch.nn.Sequential(*parts), torch.ones(4 if SMALL else 1024, width)


def _step(model: torch.nn.Module, optimizer: Any, inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def _wrapped(model: torch.nn.Module) -> Any:
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)
    return hvd.DistributedOptimizer(plain, model.named_parameters())


@program
def overlap() -> None:
    """The share of communication that lies beside the backward pass."""
    model, inputs = _model()
    optimizer = _wrapped(model)
    steps = 2 if SMALL else 10
    for _ in range(3):
        _step(model, optimizer, inputs)
    place.synchronize()
    what = f"communication beside kernels, by {way()}"
    if not place.ON_FAKE:
        activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(steps):
                _step(model, optimizer, inputs)
            place.synchronize()
        moving, computing = of_profile(profile.events())
        if not moving:
            say(what, "the profile shows no communication", wrong=True)
            return
        share = hidden_share(moving, computing)
        say(
            what,
            f"{share:.0%} of {sum(b - a for a, b in moving) / 1e3 / steps:.2f} ms in a step",
            100 * share,
        )
        return
    # Without a profiler: what a step takes less than its parts one after the other.
    together = median_s(lambda: _step(model, optimizer, inputs), steps)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    apart = median_s(lambda: hvd.grouped_allreduce_(gradients), steps)
    plain, inputs = _model()
    descent = torch.optim.SGD(plain.parameters(), lr=1e-4)
    compute = median_s(lambda: _step(plain, descent, inputs), steps)
    share = max(0.0, min(1.0, (compute + apart - together) / apart))
    say(what, f"{share:.0%} of {apart * 1e3:.2f} ms in a step", 100 * share)


@program
def beside_ddp() -> None:
    """A step of training beside DistributedDataParallel of PyTorch."""
    import torch.distributed as dist

    if place.ON_FAKE:
        say("a step beside DistributedDataParallel", "it does not know the stand-in", missing=True)
        return
    steps = 3 if SMALL else 30
    model, inputs = _model()
    optimizer = _wrapped(model)
    ours = median_s(lambda: _step(model, optimizer, inputs), steps)
    path = hvd.broadcast_object(f"{tempfile.gettempdir()}/farandole-ddp-{secrets.token_hex(8)}", 0)
    backend = "nccl" if way() == "nccl" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{path}", rank=hvd.rank(), world_size=hvd.size())
    other, inputs = _model()
    parallel = torch.nn.parallel.DistributedDataParallel(other, device_ids=[place.here()])
    theirs_of = torch.optim.SGD(parallel.parameters(), lr=1e-4)
    theirs = median_s(lambda: _step(parallel, theirs_of, inputs), steps)
    dist.destroy_process_group()
    figure = (
        f"{ours * 1e3:.2f} ms by {way()}, DDP {theirs * 1e3:.2f} ms by {backend}: {ours / theirs - 1:+.1%}"
    )
    say("a step beside DistributedDataParallel", figure, 100 * (ours / theirs - 1))


def _size(size_bytes: int) -> str:
    for unit, name in ((MIB, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--way", default="", help="fail if tensors did not travel by it")
    arguments = parser.parse_args()
    hvd.init()
    PROGRAMS[arguments.program]()
    taken = way()
    hvd.shutdown()
    if arguments.way and not taken.startswith(arguments.way) and not MISSING:
        sys.exit(f"tensors should have travelled by {arguments.way}, but did by {taken}")


if __name__ == "__main__":
    main()
