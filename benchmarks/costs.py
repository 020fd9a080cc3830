"""What the library costs beside moving bytes: submitting, negotiating, recording. One rank.

    horovodrun -np 2 python -m benchmarks.costs

Each cost is that of something being there, so it is measured with and without it, in turns. Ranks are in one
process set; figures are medians over turns, of rank 0, in µs:

* hook: what a gradient of 4 bytes costs the backward pass, Python included: backward passes of many tiny
  parameters with and without `DistributedOptimizer`, per parameter;
* control: `step()` waiting for 161 gradients of 4 bytes, as many as ResNet-50 has: all that is negotiation;
* timeline: the same exchange while a timeline is recorded, and while none is;
* small: a blocking allreduce of 4 bytes, median and 99th percentile.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.rows import say
from torch import nn

import horovod.torch as hvd

TENSORS = 161
SMALL_CALLS = 5000


class Scalars(nn.Module):
    """As many parameters of one element as are wanted, and their sum."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scalars = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(count)])

    def forward(self) -> torch.Tensor:
        return torch.stack(list(self.scalars)).sum()


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Training:
    """Steps of `Scalars`; with `distributed`, their gradients are exchanged."""

    def __init__(self, *, distributed: bool) -> None:
        self.module = Scalars(TENSORS)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)
        if distributed:
            names = [(f"scalar.{i}", each) for i, each in enumerate(self.module.parameters())]
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, names)

    def step(self) -> tuple[float, float]:
        """Seconds of the backward pass, and of the optimizer's step, when all ranks begin together."""
        self.optimizer.zero_grad()
        loss = self.module()
        hvd.barrier()
        return timed(loss.backward), timed(self.optimizer.step)


def turns(training: Training, count: int) -> tuple[list[float], list[float]]:
    """Backward passes and steps, each ``count`` times."""
    both = [training.step() for _ in range(count)]
    return [backward for backward, _ in both], [step for _, step in both]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--json", help="append the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # one may be recorded, none is yet
    hvd.init()
    local, distributed = Training(distributed=False), Training(distributed=True)
    turns(local, 5)
    turns(distributed, 5)
    hooks, controls, exchanges, recorded = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.turns):
            plain = [statistics.median(part) for part in turns(local, 10)]
            ours = [statistics.median(part) for part in turns(distributed, 10)]
            hooks.append((ours[0] - plain[0]) / TENSORS)
            controls.append(ours[1] - plain[1])
            exchanges.append(sum(ours))
            if hvd.rank() == 0:
                hvd.start_timeline(str(Path(folder) / f"{turn}.json"))
            hvd.barrier()
            recorded.append(sum(statistics.median(part) for part in turns(distributed, 10)))
            if hvd.rank() == 0:
                hvd.stop_timeline()
            hvd.barrier()
    small = torch.ones(1)
    calls = [timed(lambda: hvd.allreduce_(small, name="small")) for _ in range(SMALL_CALLS)]
    shares = [with_ / without for with_, without in zip(recorded, exchanges, strict=True)]
    if hvd.rank() == 0:
        row = {
            "ranks": hvd.size(),
            "hook_us": statistics.median(hooks) * 1e6,
            "control_us": statistics.median(controls) * 1e6,
            "timeline_us": statistics.median(exchanges) * 1e6 * (statistics.median(shares) - 1),
            "timeline_share": statistics.median(shares) - 1,
            "small_us": statistics.median(calls) * 1e6,
            "small_p99_us": sorted(calls)[int(len(calls) * 0.99)] * 1e6,
        }
        say(row, str(row), args.json)
    hvd.shutdown()


if __name__ == "__main__":
    main()
