"""What an elastic state costs: a commit, and giving it to newcomers.

    python -m benchmarks.elastic_state commit                          # one process
    horovodrun -np 4 python -m benchmarks.elastic_state sync           # from rank 0 to three newcomers

* commit: `TorchState.save` of a network and its Adam state, in turns with a deep copy of both state dicts;
  time and page faults;
* sync: the first `TorchState.sync` of newcomers, of a network of so many bytes, in turns with one broadcast
  of these bytes as one tensor; the same where newcomers copy what they keep, as those of another host do; the
  transfer alone. A time is that of the slowest rank, CPU time is that of all ranks together.

Figures are medians over turns, with the lowest and the highest.
"""

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from benchmarks.rows import say
from torch import nn

import horovod.torch as hvd
from horovod.common.exceptions import HostsUpdatedInterrupt

WIDTH = 1024


def network(parameters: int) -> nn.Module:
    """Blocks of a matrix and a vector, as transformers are made of."""
    blocks = max(1, round(parameters / (WIDTH * WIDTH + WIDTH)))
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(blocks)])


def cost(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds and page faults of `call`."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    call()
    taken_s = time.perf_counter() - start
    return 1000 * taken_s, float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)


def summary(figures: list[float]) -> list[float]:
    return [statistics.median(figures), min(figures), max(figures)]


def commit(parameters: int, turns: int) -> dict[str, Any]:
    model = network(parameters)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = hvd.elastic.TorchState(model, optimizer)
    state.save()  # both sets of copies have their memory now
    kept: list[Any] = []

    def deep() -> None:
        kept[:] = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]

    deep()
    costs: dict[str, list[tuple[float, float]]] = {"save": [], "deepcopy": []}
    for _ in range(turns):
        costs["save"].append(cost(state.save))
        costs["deepcopy"].append(cost(deep))
    row: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    for name, both in costs.items():
        row[f"{name} ms"] = summary([ms for ms, _ in both])
        row[f"{name} page faults"] = statistics.median(faults for _, faults in both)
    return row


def commit_before_newcomers(state: Any) -> None:
    """The last thing that survivors do in a world that newcomers are let into."""
    state.on_hosts_updated(int(state._last_update + 1), 2)
    try:
        state.commit()
    except HostsUpdatedInterrupt:
        return
    raise AssertionError("a change of the hosts was not noticed")


def in_one_tensor(model: nn.Module) -> torch.Tensor:
    """All parameters, which are parts of it from now on."""
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    return flat


def of_all_ranks(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of the slowest rank, and CPU milliseconds of all."""
    hvd.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    call()
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    slowest = hvd.allreduce(torch.tensor([1000 * took]), op=hvd.Max).item()
    return slowest, hvd.allreduce(torch.tensor([1000 * cpu]), op=hvd.Sum).item()


def sync(parameters: int, turns: int) -> dict[str, Any]:
    model = network(parameters)
    flat = in_one_tensor(model)
    # Only rank 0 survives; the others do what belongs to its collectives.
    survivor: Any = hvd.elastic.TorchState(model if hvd.rank() == 0 else None)
    state = survivor if hvd.rank() == 0 else hvd.elastic.TorchState(model)
    costs: dict[str, list[tuple[float, float]]] = {}

    def measure(name: str, call: Callable[[], object]) -> None:
        costs.setdefault(name, []).append(of_all_ranks(call))

    for turn in range(turns + 1):
        measure("broadcast", lambda: hvd.broadcast_(flat, 0))
        measure("transfer", lambda: hvd.broadcast_parameters(model.state_dict(), 0))
        for name in ("sync", "sync, newcomers copy"):
            commit_before_newcomers(survivor)
            with mock.patch.object(state, "_equal_copies", dict) if name != "sync" else nullcontext():
                measure(name, state.sync)
            if hvd.rank() != 0:
                state.save()  # has one copy in memory of its own again, as a newcomer has
        if turn == 0:
            costs.clear()  # there was new memory
    row: dict[str, Any] = {"bytes": 4 * flat.numel(), "ranks": hvd.size()}
    for name, both in costs.items():
        row[f"{name} ms"] = summary([ms for ms, _ in both])
        row[f"{name} CPU ms"] = summary([cpu for _, cpu in both])
    for number, unit in enumerate(("share", "CPU share")):
        for name in ("sync", "sync, newcomers copy", "transfer"):
            shares = [
                one[number] / other[number]
                for one, other in zip(costs[name], costs["broadcast"], strict=True)
            ]
            row[f"{name} {unit}"] = summary(shares)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["commit", "sync"])
    parser.add_argument("--parameters", type=float, help="default: 100e6 for commit, 250e6 for sync")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", help="append the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    if args.what == "commit":
        row = commit(int(args.parameters or 100e6), args.turns)
    else:
        row = sync(int(args.parameters or 250e6), args.turns)
    if hvd.rank() == 0:
        say(row, str(row), args.json)
    hvd.shutdown()


if __name__ == "__main__":
    main()
