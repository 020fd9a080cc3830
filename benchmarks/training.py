"""Training of real networks: samples/s of all ranks, beside as many independent copies. One rank of one peer.

    horovodrun -np 2 python -m benchmarks.training --peer farandole

Copies that never communicate are as fast as training on this machine can be. So each peer trains in turn with
such copies, in the same processes, a fraction of a second each; its *share* is its samples/s divided by that
of the copies in the turn beside it. Every rank has a batch of its own (weak scaling).

| way | is |
|---|---|
| `copies` | nobody communicates |
| `meeting` | copies that wait for each other before each step: the cost of going in step, without any data |
| `farandole` | `DistributedOptimizer` |
| `ddp`, `ddp-views` | `DistributedDataParallel` over Gloo, also with `gradient_as_bucket_view` |
| `openmpi` | after the backward pass, an allreduce for each gradient |

Afterwards, ranks that communicate hold the same parameters, bit by bit, or the program fails.
"""

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from benchmarks import peers
from benchmarks.networks import NETWORKS, Network
from benchmarks.rows import say
from torch import nn
from torch.nn import functional

from horovod.bench.measure import busy_cpu_s
from horovod.bench.result import CALM_CPUS
from horovod.bench.work import single

WAYS: dict[str, tuple[str, ...]] = {
    "farandole": ("copies", "farandole"),
    "gloo": ("copies", "ddp", "ddp-views"),
    "openmpi": ("copies", "openmpi"),
}
_BATCHES: Final = 8
_WARM_UP: Final = 4


class Trainer:
    """One network on this rank, trained in one way."""

    def __init__(self, peer: peers.Peer, network: Network, way: str) -> None:
        torch.manual_seed(1)  # all ranks and ways start from the same parameters
        self.module = network.make()
        self._peer = peer
        self._forward: Callable[[torch.Tensor], torch.Tensor] = self.module
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.module.parameters(), lr=0.01, momentum=0.9
        )
        self._between: Callable[[], object] | None = None
        if way == "farandole":
            import horovod.torch as hvd

            hvd.broadcast_parameters(self.module.state_dict(), root_rank=0)
            self._optimizer = hvd.DistributedOptimizer(self._optimizer, self.module.named_parameters())
        elif way in ("ddp", "ddp-views"):
            views = way == "ddp-views"
            self._forward = nn.parallel.DistributedDataParallel(self.module, gradient_as_bucket_view=views)
        elif way == "openmpi":
            self._between = self._reduce
        elif way == "meeting":
            self._between = peer.barrier
        torch.manual_seed(100 + peer.rank)
        self._batches = [network.batch() for _ in range(_BATCHES)]
        self._steps = 0

    def step(self) -> torch.Tensor:
        """Train on the next batch; the loss."""
        given, labels = self._batches[self._steps % _BATCHES]
        self._steps += 1
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._forward(given).flatten(0, -2), labels.flatten())
        loss.backward()
        if self._between is not None:
            self._between()
        self._optimizer.step()
        return loss

    def train(self, steps: int) -> float:
        """Seconds that this rank needs for ``steps``, once everybody is there; the first is not timed."""
        self.step()
        self._peer.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        return time.perf_counter() - start

    def _reduce(self) -> None:
        gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
        self._peer.many([single("allreduce", each.view(-1), str(i)) for i, each in enumerate(gradients)])()
        torch._foreach_mul_(gradients, 1 / self._peer.size)


def everybodys(peer: peers.Peer, values: Sequence[float]) -> torch.Tensor:
    """The values of all ranks, as float32 ``(ranks, len(values))``."""
    table = torch.zeros(peer.size, len(values))
    table[peer.rank] = torch.tensor(values)
    return peer.total(table.view(-1)).view(table.shape)


def fingerprint(module: nn.Module) -> list[float]:
    """Of the parameters' bits: numbers of 24 bits, which float32 holds exactly."""
    bits = hashlib.sha256()
    for parameter in module.parameters():
        bits.update(parameter.detach().contiguous().numpy().tobytes())
    digest = bits.digest()
    return [float(int.from_bytes(digest[i : i + 3], "big")) for i in range(0, 30, 3)]


@dataclass(frozen=True)
class Turn:
    """Some steps in a row in one way."""

    samples_s: float  # of all ranks
    others_cpus: float  # what other programs used meanwhile


def take_turns(
    peer: peers.Peer, trainers: Mapping[str, Trainer], samples: int, turns: int, turn_s: float
) -> dict[str, list[Turn]]:
    """Train with all ``trainers``, turn by turn, every second turn backwards.

    Args:
        samples: in a batch.
        turn_s: seconds that a turn should take; it has at least two steps.
    """
    ways = list(trainers)
    once_s = [everybodys(peer, [trainers[way].train(_WARM_UP) / _WARM_UP]).mean().item() for way in ways]
    steps = max(2, round(turn_s / max(once_s)))
    spent: dict[str, list[float]] = {way: [] for way in ways}
    machine: dict[str, list[float]] = {way: [] for way in ways}
    own: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns):
        for way in ways[:: -1 if turn % 2 else 1]:
            began, busy_s, own_s = time.perf_counter(), busy_cpu_s(), time.process_time()
            spent[way].append(trainers[way].train(steps))
            lasted_s = time.perf_counter() - began
            machine[way].append((busy_cpu_s() - busy_s) / lasted_s)
            own[way].append((time.process_time() - own_s) / lasted_s)
    found = {}
    for way in ways:
        speeds = (samples * steps / everybodys(peer, spent[way]).double()).sum(0).tolist()
        used = everybodys(peer, own[way]).sum(0).tolist()
        others = [max(0.0, all_ - ours) for all_, ours in zip(machine[way], used, strict=True)]
        found[way] = [Turn(*each) for each in zip(speeds, others, strict=True)]
    return found


def compare(
    peer: peers.Peer, network: Network, ways: Sequence[str], turns: int, turn_s: float
) -> list[dict[str, Any]]:
    """Train in all ``ways``; a row of figures for each.

    Raises:
        RuntimeError: parameters differ between ranks, or the loss has become infinite.
    """
    trainers = {way: Trainer(peer, network, way) for way in ways}
    found = take_turns(peer, trainers, network.samples, turns, turn_s)
    for way, trainer in trainers.items():
        prints = everybodys(peer, fingerprint(trainer.module))
        if way not in ("copies", "meeting") and not bool((prints == prints[0]).all()):
            raise RuntimeError(f"{way}: the parameters differ between ranks after training")
        if not bool(torch.isfinite(trainer.step())):
            raise RuntimeError(f"{way}: the loss is not finite any more")
    rows = []
    for way in ways:
        pairs = list(zip(found[way], found["copies"], strict=True))
        calm = [pair for pair in pairs if max(turn.others_cpus for turn in pair) <= CALM_CPUS] or pairs
        samples_s = statistics.median(turn.samples_s for turn, _ in calm)
        shares = sorted(turn.samples_s / copies.samples_s for turn, copies in calm)
        rows.append(
            {
                "peer": way,
                "ranks": peer.size,
                "samples_s": samples_s,
                "step_s": network.samples * peer.size / samples_s,
                "share": statistics.median(shares),
                "share_low": shares[0],
                "share_high": shares[-1],
                "turns": len(calm),
                "others_cpus": statistics.median(turn.others_cpus for pair in calm for turn in pair),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=list(WAYS), required=True)
    parser.add_argument("--json", help="append one line per result to this file")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--ways", nargs="+", help="instead of the peer's: `meeting`, for example")
    parser.add_argument("--turns", type=int, default=6, help="of each way")
    parser.add_argument("--turn-s", type=float, default=0.25, help="seconds that one takes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = peers.create(args.peer)
    ways = tuple(dict.fromkeys(("copies", *(args.ways or WAYS[args.peer]))))
    for name in args.networks:
        try:
            rows = compare(peer, NETWORKS[name], ways, args.turns, args.turn_s)
        except RuntimeError as error:
            sys.exit(f"{args.peer}: {name}: rank {peer.rank}: {error}")
        if peer.rank != 0:
            continue
        for row in rows:
            text = (
                f"{name:11} {row['peer']:9} {row['samples_s']:8.1f} samples/s  "
                f"step {row['step_s'] * 1e3:7.2f} ms  share {row['share']:.3f} "
                f"({row['share_low']:.3f}…{row['share_high']:.3f} in {row['turns']} turns)  "
                f"others {row['others_cpus']:.2f}"
            )
            say({"network": name, **row}, text, args.json)
    peer.close()


if __name__ == "__main__":
    main()
