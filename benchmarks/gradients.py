"""One training step's gradients, with the tensor sizes of real models: one rank of one peer.

    horovodrun -np 2 python -m benchmarks.gradients --peer farandole

Gradients come last layer first, all at once (no compute to overlap with). Ways: `each` submits every
tensor by itself and waits for all; `shared` does that with gradients in memory that the ranks share;
`group` is one grouped call; `flat` is one tensor with all gradients.
"""

import argparse
import math
import sys
from collections.abc import Callable

import torch
from benchmarks import peers
from benchmarks.rows import say

from horovod.bench.measure import measure
from horovod.bench.work import Work, single
from horovod.torch.frontend import shared_like

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """Parameter shapes of ResNet-50 (He et al. 2016): 161 tensors, 25 557 032 parameters."""
    shapes: list[Shape] = []

    def convolution(out: int, into: int, kernel: int) -> None:
        shapes.extend([(out, into, kernel, kernel), (out,), (out,)])  # weight; batch norm's scale and shift

    convolution(64, 3, 7)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            convolution(width, channels, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, channels, 1)
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def gpt2_small() -> list[Shape]:
    """Parameter shapes of GPT-2 small (Radford et al. 2019): 148 tensors, 124 439 808 parameters."""
    d = 768
    norm: list[Shape] = [(d,), (d,)]
    attention: list[Shape] = [(d, 3 * d), (3 * d,), (d, d), (d,)]
    mlp: list[Shape] = [(d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(50257, d), (1024, d), *((norm + attention + norm + mlp) * 12), *norm]


MODELS: dict[str, Callable[[], list[Shape]]] = {"resnet50": resnet50, "gpt2-small": gpt2_small}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=peers.NAMES, required=True)
    parser.add_argument("--json", help="append one line per result to this file")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--min-time-s", type=float, default=0.8, help="per model and way")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = peers.create(args.peer)
    for model in args.models:
        counts = [math.prod(shape) for shape in reversed(MODELS[model]())]
        gradients = [torch.empty(count) for count in counts]
        flat = torch.empty(sum(counts))
        named = [single("allreduce", tensor, f"gradient{i}") for i, tensor in enumerate(gradients)]

        ways: dict[str, tuple[Callable[[], object], list[torch.Tensor]]] = {
            "each": (peer.many(named), gradients),
            "flat": (peer.blocking(single("allreduce", flat, "flat")), [flat]),
        }
        if args.peer == "farandole":
            group = tuple(gradients)
            together = Work("grouped_allreduce", group, group, name="gradients")
            ways["group"] = (peer.blocking(together), gradients)
            shared = [shared_like(gradient) for gradient in gradients]
            named = [single("allreduce", tensor, f"shared{i}") for i, tensor in enumerate(shared)]
            ways["shared"] = (peer.many(named), shared)
        for way, (call, tensors) in ways.items():
            for i, tensor in enumerate(tensors):
                tensor.fill_(i % 13 + peer.rank)
            peer.barrier()
            if args.peer != "limit":
                call()
                n = peer.size
                for i, tensor in enumerate(tensors):
                    if not bool((tensor == (i % 13) * n + n * (n - 1) // 2).all()):
                        sys.exit(f"{args.peer}: {model}, {way}: tensor {i} is wrong on rank {peer.rank}")
            for tensor in tensors:
                tensor.zero_()
            timing = measure(peer, call, min_time_s=args.min_time_s, max_calls=60, between=True)
            if peer.rank != 0:
                continue
            row = {
                "peer": args.peer,
                "model": model,
                "way": way,
                "ranks": peer.size,
                "bytes": sum(counts) * 4,
                "median_s": timing.median_s,
                "p99_s": timing.p99_s,
                "calls": timing.calls,
                "others_cpus": timing.others_cpus,
            }
            say(
                row,
                f"{model:11} {way:6} median {timing.median_s * 1e3:8.2f} ms  others {timing.others_cpus:.2f}",
                args.json,
            )
    peer.close()


if __name__ == "__main__":
    main()
