"""The ranks of `elastic.py`: one small network, trained by one of the systems until somebody ends them.

    python -m benchmarks.elastic_ranks SYSTEM SOCKET FOLDER

A rank says to the datagram socket what happens to it, as JSON: ``up`` (it can train), ``step`` (one has
ended, and what it has made is safe), ``error`` (one has failed). Times are of the machine's monotonic clock.
Each system keeps what it must after every step: Farandole commits, the script of torchrun writes a
checkpoint, torchft needs nothing.
"""

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH = 256
BATCH = 16
LIMIT_S = 60.0


class Voice:
    """Says what happens to this rank."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.connect(path)

    def __call__(self, what: str, **more: object) -> None:
        said = {"pid": os.getpid(), "what": what, "at": time.monotonic(), **more}
        self._socket.send(json.dumps(said).encode())


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def backward(model: nn.Module) -> None:
    model(torch.randn(BATCH, WIDTH)).square().mean().backward()


def farandole(say: Voice, folder: Path) -> None:
    import horovod.torch as hvd

    hvd.init()
    model, optimizer = network()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state: Any = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            try:
                optimizer.zero_grad()
                backward(model)
                optimizer.step()
                state.step += 1
                state.commit()
            except hvd.HorovodInternalError:
                say("error")
                raise
            say("step", step=state.step, size=hvd.size())

    say("up")
    train(state)


def torchrun(say: Voice, folder: Path) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    model, optimizer = network()
    newest, step = folder / "newest.pt", 0
    if newest.exists():
        kept = torch.load(newest)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    wrapped = DistributedDataParallel(model)
    say("up")
    while True:
        try:
            optimizer.zero_grad()
            backward(wrapped)
        except RuntimeError:
            say("error")
            raise
        optimizer.step()
        step += 1
        if distributed.get_rank() == 0:
            made = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(made, folder / "new.pt")
            os.replace(folder / "new.pt", newest)
        say("step", step=step, size=distributed.get_world_size())


def torchft(say: Voice, folder: Path) -> None:
    from torch import distributed
    from torchft import (  # type: ignore[import-not-found, unused-ignore]
        Manager,
        Optimizer,
        ProcessGroupGloo,
    )

    model, plain = network()

    def load(kept: dict[str, Any]) -> None:
        model.load_state_dict(kept["model"])
        plain.load_state_dict(kept["optimizer"])

    store = distributed.TCPStore(  # type: ignore[attr-defined, unused-ignore]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=2,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=timedelta(seconds=10),
        replica_id=os.environ["REPLICA"],
    )
    optimizer = Optimizer(manager, plain)
    # Its DistributedDataParallel (0.2.0) ends with an AssertionError when a peer is lost in backward().
    parameters = list(model.parameters())
    say("up")
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        backward(model)
        flat = nn.utils.parameters_to_vector([each.grad for each in parameters if each.grad is not None])
        manager.allreduce(flat).wait()
        nn.utils.vector_to_parameters(flat, [each.grad for each in parameters if each.grad is not None])
        optimizer.step()
        if manager.current_step() > before:
            say("step", step=manager.current_step(), size=manager.num_participants())
        else:
            say("error")


def lighthouse(say: Voice, folder: Path) -> None:
    """Who tells ranks of torchft about each other; with the settings of its README."""
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found, unused-ignore]

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, quorum_tick_ms=100, join_timeout_ms=10000)
    say("address", address=server.address())
    threading.Event().wait()


SYSTEMS: dict[str, Callable[[Voice, Path], None]] = {
    "farandole": farandole,
    "torchrun": torchrun,
    "torchft": torchft,
    "lighthouse": lighthouse,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("socket", help="where to say what happens")
    parser.add_argument("folder", type=Path, help="for checkpoints; of one job")
    args = parser.parse_args()
    torch.set_num_threads(1)
    SYSTEMS[args.system](Voice(args.socket), args.folder)


if __name__ == "__main__":
    main()
