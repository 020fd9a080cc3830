"""Training with PyTorch, as a worker of an elastic job: ``TorchState``, ``ElasticSampler``, the optimizer.

    python torch_worker.py EPOCHS

Points: ``start``, ``init``, ``prologue``, ``begun`` (answered by ``spoil``: the model is lost), ``step``,
``backward`` (half of the gradients), ``commit``, ``saved``, ``epoch``, ``reset``, ``wrong``, ``done``. Each
record is counted where it is processed, and the counts are part of the state. The model is large enough for
newcomers to have the copy of rank 0.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.elastic.link import Link

link = Link()

import torch  # noqa: E402
from tests.elastic import sums  # noqa: E402

import horovod.torch as hvd  # noqa: E402
from horovod.runtime import lifecycle  # noqa: E402

EPOCHS = int(sys.argv[1])
RECORDS, BATCH = 48, 4
HIDDEN = 48_000
torch.set_num_threads(1)


def facts() -> dict[str, Any]:
    part = lifecycle.part()
    return {"rank": hvd.rank(), "size": hvd.size(), "round": part.round if part is not None else 0}


class Wrong(Exception):
    """A sum is not what members have given, or a record is lost."""


def check(what: str, ours: bool, **more: Any) -> None:
    if not ours:
        link.at("wrong", what=what, **more, **facts())
        raise Wrong(f"{what}: {more}, {facts()}")


class State(hvd.elastic.TorchState):
    epoch: int
    batch: int
    last: bool
    seen: torch.Tensor
    sampler: Any

    def save(self) -> None:
        link.at("commit", epoch=self.epoch, batch=self.batch, **facts())
        super().save()
        link.at("saved", epoch=self.epoch, batch=self.batch, **facts())


def halfway(gradient: torch.Tensor) -> None:
    link.at("backward", **facts())


def main() -> None:
    link.at("init")
    hvd.init()
    link.at("prologue", **facts())
    torch.manual_seed(3)
    records = torch.randn(RECORDS, 6)
    last = torch.nn.Linear(HIDDEN, 1)
    last.weight.register_hook(halfway)
    model = torch.nn.Sequential(torch.nn.Linear(6, HIDDEN), torch.nn.Tanh(), last)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(records, shuffle=True, seed=5)
    state = State(
        model, optimizer, sampler=sampler, epoch=0, batch=0, last=False,
        seen=torch.zeros(RECORDS, dtype=torch.int32),
    )  # fmt: skip
    state.register_reset_callbacks([lambda: link.at("reset", **facts())])

    def one_step(state: State, indices: list[int]) -> None:
        at = facts()
        told = link.at("step", epoch=state.epoch, batch=state.batch, **at)
        token = 1000 * at["round"] + state.batch
        counts = torch.zeros(RECORDS + 2, dtype=torch.int32)
        for index in indices:
            counts[index] += 1
        counts[RECORDS], counts[RECORDS + 1] = (at["rank"] + 1) * token, told == "last"
        counts = hvd.allreduce(counts, op=hvd.Sum, name="counts")
        check("token", int(counts[RECORDS]) == token * at["size"] * (at["size"] + 1) // 2, token=token)
        optimizer.zero_grad()
        (model(records[indices]) ** 2).mean().backward()
        optimizer.step()
        state.seen = state.seen + counts[:RECORDS]
        state.last = state.last or bool(counts[RECORDS + 1])
        state.sampler.record_batch(state.batch, len(indices))
        state.batch += 1

    def bits() -> str:
        return sums.digest(torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy())

    @hvd.elastic.run
    def train(state: State) -> None:
        if link.at("begun", weights=bits(), epoch=state.epoch, batch=state.batch, **facts()) == "spoil":
            torch.nn.init.zeros_(last.weight)
        while state.epoch < EPOCHS and not (state.last and state.batch == 0):
            mine = list(state.sampler)
            for start in range(0, len(mine), BATCH):
                one_step(state, mine[start : start + BATCH])
                if start + BATCH < len(mine):
                    state.commit()
            check("seen", bool((state.seen >= 1).all()), seen=state.seen.tolist())
            again = int(state.seen.sum()) - RECORDS
            state.epoch, state.batch, state.seen = state.epoch + 1, 0, torch.zeros_like(state.seen)
            state.sampler.set_epoch(state.epoch)
            link.at("epoch", epoch=state.epoch, again=again, **facts())
            state.commit()

    train(state)
    link.at("done", weights=bits(), epoch=state.epoch, **facts())


main()
