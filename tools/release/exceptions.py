"""Exceptions of two C++ libraries in one process: the module's own, hidden one, and the one PyTorch loads.

Throws in both, in turn, and in several threads. A library that found the other's code would crash here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import horovod.torch as hvd
from horovod import _core

ROUNDS = 200
THREADS = 4


def thrown(call: Callable[[], object], kind: type[Exception], said: str) -> None:
    """``call`` throws in C++, which its binding turns into an exception of ``kind``."""
    try:
        call()
    except kind as error:
        caught = str(error)
    else:
        caught = "nothing"
    if said not in caught:
        raise SystemExit(f"expected {kind.__name__} with {said!r}, and caught {caught!r}")


def both() -> None:
    engine: Callable[..., object] = _core.Engine
    for _ in range(ROUNDS):
        thrown(lambda: torch.ones(2, 3) @ torch.ones(2, 3), RuntimeError, "cannot be multiplied")
        thrown(lambda: engine("no", "such", "engine"), TypeError, "incompatible")
        thrown(lambda: hvd.broadcast(torch.ones(3), root_rank=7), ValueError, "7")
        thrown(lambda: torch.zeros(3).view(2, 2), RuntimeError, "invalid for input")


def main() -> None:
    hvd.init()
    both()
    ended: list[int] = []

    def counted(number: int) -> None:
        both()
        ended.append(number)

    threads = [threading.Thread(target=counted, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(ended) != THREADS:
        raise SystemExit(f"only the threads {sorted(ended)} came to their end")
    hvd.shutdown()
    each = 2 * ROUNDS * (THREADS + 1)
    print(f"{each} exceptions of torch and {each} of the module in one process")


if __name__ == "__main__":
    main()
