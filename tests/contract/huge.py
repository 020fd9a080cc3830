"""One rank of a test with tensors of more than 2 GiB; prints "done"."""

from __future__ import annotations

import torch

import horovod.torch as hvd

COUNT = 2**31 + 17


def main() -> None:
    hvd.init()
    me = hvd.rank()
    value = torch.full((COUNT,), me + 1, dtype=torch.uint8)
    value[-1] = 7 * me

    assert hvd.broadcast_(value, 1, name="huge") is value
    assert value[-1].item() == 7
    assert_ends(value, 2)

    value.fill_(me + 1)
    hvd.allreduce_(value, name="huge", op=hvd.Sum)
    assert value[-1].item() == 3
    assert_ends(value, 3)
    hvd.shutdown()
    print("done")


def assert_ends(value: torch.Tensor, expected: int) -> None:
    """Both ends, both sides of every multiple of 1 GiB, and a sample in between."""
    edges = [0, 2**30, 2**31]
    for edge in edges:
        around = value[max(0, edge - 64) : edge + 16]
        assert bool((around == expected).all()), f"wrong near element {edge}"
    assert bool((value[:-1:4099] == expected).all())


if __name__ == "__main__":
    main()
