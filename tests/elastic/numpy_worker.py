"""Training with NumPy, as a worker of an elastic job: it checks every sum, and keeps books of the records.

    python numpy_worker.py EPOCHS RECORDS BATCH

Points: ``start``, ``import``, ``init``, ``forming`` (a world, whenever), ``joined`` (its connections stand),
``prologue``, ``sync``, ``synced``, ``step``, ``submitted`` (one operation of several), ``commit``, ``saved``,
``epoch``, ``interrupted`` (hosts have changed), ``leaving``, ``left``, ``reset``, ``wrong``, ``done``.
"""

from __future__ import annotations

import sys

from tests.elastic.link import Link

link = Link()
link.at("import")

from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from tests.elastic import sums  # noqa: E402

import horovod.arrays as hvd  # noqa: E402
from horovod.elastic.run import run_fn  # noqa: E402
from horovod.elastic.sampler import remaining_indices  # noqa: E402
from horovod.elastic.state import ObjectState  # noqa: E402
from horovod.errors import HostsUpdatedInterrupt  # noqa: E402
from horovod.runtime import forming, lifecycle  # noqa: E402

EPOCHS, RECORDS, BATCH = map(int, sys.argv[1:4])
LARGE = 40_000
"""Numbers of an array that does not fit into one message."""

_module: Any = forming  # whose parts are replaced
_connect = _module.connect


def connect(*args: Any) -> Any:
    link.at("forming", rank=args[0].rank, size=args[0].size, round=int(args[1].epoch))
    made = _connect(*args)
    link.at("joined", rank=args[0].rank, size=args[0].size, round=int(args[1].epoch))
    return made


_module.connect = connect


def facts() -> dict[str, Any]:
    part = lifecycle.part()
    return {"rank": hvd.rank(), "size": hvd.size(), "round": part.round if part is not None else 0}


class State(ObjectState):
    weights: sums.Weights
    floats: Any
    """Sums of these have an order: they are those of a run without failures, if the ranks are as many."""
    seen: Any
    step: int
    epoch: int
    processed: int
    last: int

    def save(self) -> None:
        link.at("commit", step=self.step, **facts())
        super().save()
        link.at("saved", step=self.step, **facts())

    def check_host_updates(self) -> None:
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt as interrupt:
            link.at("interrupted", skip_sync=interrupt.skip_sync, step=self.step, **facts())
            raise

    def sync(self) -> None:
        link.at("sync", **facts())
        super().sync()
        link.at("synced", step=self.step, **facts())


class Wrong(Exception):
    """A sum is not what members have given."""


def check(what: str, ours: bool, **more: Any) -> None:
    if not ours:
        link.at("wrong", what=what, **more, **facts())
        raise Wrong(f"{what}: {more}, {facts()}")


def one_step(state: State) -> None:
    """A batch of each rank. All members know what each of them gives: the sums are known."""
    at = facts()
    rank, size, token = at["rank"], at["size"], 1000 * at["round"] + state.step % 1000
    told = link.at("step", step=state.step, epoch=state.epoch, **at)
    left = remaining_indices(RECORDS, True, 7, state.epoch, state.processed)
    mine = left[rank : BATCH * size : size]
    counts = np.bincount(mine, minlength=RECORDS + 1).astype(np.int32)
    counts[RECORDS] = told == "last" or state.last > 0
    gradient = sums.gradient(mine, state.epoch).view(np.int64)
    pattern = np.arange(LARGE, dtype=np.float64) % 97 + token

    floats = np.sin(np.arange(1000) * (1.0 + rank) + state.step) * state.floats

    first = hvd.allreduce_async(counts, op=hvd.Sum, name="counts")
    link.at("submitted", step=state.step, **at)
    handles = [
        hvd.allreduce_async(floats, op=hvd.Sum, name="floats"),
        hvd.allreduce_async(gradient, op=hvd.Sum, name="gradient"),
        hvd.allreduce_async(pattern * (rank + 1), op=hvd.Sum, name="pattern"),
    ]
    counts, floats, gradient, large = (hvd.synchronize(handle) for handle in (first, *handles))
    check(
        "pattern",
        np.array_equal(large, pattern * (size * (size + 1) // 2)),
        got=float(large[0]), token=token, step=state.step,
    )  # fmt: skip
    want = np.bincount(left[: BATCH * size], minlength=RECORDS)
    check("counts", np.array_equal(counts[:RECORDS], want), step=state.step)
    state.floats = state.floats * 0.9 + floats / 7.0
    state.weights = state.weights + gradient.view(np.uint64)
    state.seen = state.seen + counts[:RECORDS]
    state.last = int(counts[RECORDS] > 0)
    state.processed += BATCH * size
    state.step += 1


def train(state: State) -> None:
    while state.epoch < EPOCHS:
        while state.processed < RECORDS:
            one_step(state)
            if state.processed < RECORDS:
                state.commit()
        check("seen", bool((state.seen == 1).all()), seen=state.seen.tolist())
        state.weights = sums.end_epoch(state.weights)
        state.epoch, state.processed, state.seen = state.epoch + 1, 0, np.zeros_like(state.seen)
        link.at("epoch", epoch=state.epoch, step=state.step, **facts())
        state.commit()
        if state.last:
            return


def reset() -> None:
    link.at("leaving")
    hvd.shutdown()
    link.at("left")
    hvd.init()


def main() -> None:
    link.at("init")
    hvd.init()
    link.at("prologue", **facts())
    state = State(
        lambda value: hvd.broadcast_object(value, 0, name="elastic.state"),
        hvd.rank,
        weights=sums.start(),
        floats=np.ones(1000),
        seen=np.zeros(RECORDS, np.int32),
        step=0,
        epoch=0,
        processed=0,
        last=0,
    )
    state.register_reset_callbacks([lambda: link.at("reset", **facts())])
    run_fn(train, reset)(state)
    weights, floats = sums.digest(state.weights), sums.digest(state.floats)
    link.at("done", weights=weights, floats=floats, epoch=state.epoch, step=state.step, **facts())


main()
