"""One rank of a job whose connections to other hosts are in chaos: two threads, each with a program of its
own that is the same on every rank. Checks every value.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import threading
import time
import traceback
from collections.abc import Callable

import pytest
import torch
from tests.contract.chaos_relay import interpose

import horovod.torch as hvd

LIMIT_S = 60.0
SIZES = [1, 17, 1000, 30000, 70000]
SAME = 30000
"""Elements of what is repeated: so much is announced between hosts before it is sent."""


class Program:
    """One thread of this rank."""

    def __init__(self, thread: int, seed: int) -> None:
        self._thread = thread
        self._common = random.Random(f"{seed}-{thread}")
        self._own = random.Random(f"{seed}-{thread}-{hvd.rank()}")
        self.operations = 0

    def run(self, steps: int) -> None:
        """Raises AssertionError if a value is wrong."""
        for step in range(steps):
            if step // 20 % 2 == 0:
                self._repeat(step)
            else:
                self._any(step)
            self.operations += 1

    def _mine(self, step: int, count: int, rank: int) -> torch.Tensor:
        scale = (rank + 1) * (step % 89 + 1 + 100 * self._thread)
        return torch.arange(count, dtype=torch.float32).remainder_(13).add_(scale)

    def _sum(self, step: int, count: int) -> torch.Tensor:
        return torch.stack([self._mine(step, count, rank) for rank in range(hvd.size())]).sum(0)

    def _repeat(self, step: int) -> None:
        """The same name and length again and again, blocking on one thread and not on the other."""
        time.sleep(self._own.uniform(0, 0.0005 if self._thread == 0 else 0.004))
        mine = self._mine(step, SAME, hvd.rank())
        name = f"same.{self._thread}"
        if self._thread == 0:
            got = hvd.allreduce(mine, op=hvd.Sum, name=name)
        else:
            got = hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Sum, name=name))
        self._check(step, name, got, self._sum(step, SAME))

    def _any(self, step: int) -> None:
        count = self._common.choice(SIZES)
        kind = self._common.choice(["allreduce", "grouped_allreduce", "broadcast"])
        root = self._common.randrange(hvd.size())
        name = f"{self._thread}.{count}.{kind}.{root}"
        counts = [count, 5, count // 3 + 1] if kind == "grouped_allreduce" else [count]
        mine = [self._mine(step, each, hvd.rank()) for each in counts]
        blocks = self._own.random() < 0.5
        if kind == "broadcast":
            wanted = [self._mine(step, count, root)]
            got = [
                hvd.broadcast(mine[0], root, name=name)
                if blocks
                else hvd.synchronize(hvd.broadcast_async(mine[0], root, name=name))
            ]
        elif kind == "grouped_allreduce":
            wanted = [self._sum(step, each) for each in counts]
            got = (
                hvd.grouped_allreduce(mine, op=hvd.Sum, name=name)
                if blocks
                else hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum, name=name))
            )
        else:
            wanted = [self._sum(step, count)]
            got = [
                hvd.allreduce(mine[0], op=hvd.Sum, name=name)
                if blocks
                else hvd.synchronize(hvd.allreduce_async(mine[0], op=hvd.Sum, name=name))
            ]
        for each, value in zip(got, wanted, strict=True):
            self._check(step, name, each, value)

    def _check(self, step: int, name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
        where = f"rank {hvd.rank()}, step {step} of thread {self._thread}, {name}"
        assert torch.equal(got, wanted), f"{where}: {got} in place of {wanted}"


def caught(errors: list[str], run: Callable[[int], None], steps: int) -> None:
    try:
        run(steps)
    except Exception:
        errors.append(traceback.format_exc())
        hvd.shutdown()  # nobody waits for the rest


def main() -> None:
    """Exits with 1 if something went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    errors: list[str] = []
    rank = int(os.environ["HOROVOD_RANK"])
    with pytest.MonkeyPatch.context() as patch:
        interpose(patch, rank, arguments.seed * 10 + rank)
        hvd.init()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    programs = [Program(thread, arguments.seed) for thread in range(2)]
    threads = [
        threading.Thread(target=caught, args=(errors, program.run, arguments.steps)) for program in programs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit("\n".join(errors))
    hvd.barrier()
    hvd.shutdown()
    faulthandler.cancel_dump_traceback_later()
    print("right:", *(program.operations for program in programs))


if __name__ == "__main__":
    main()
