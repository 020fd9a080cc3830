"""Time and bandwidth of collectives: one rank of one peer. `benchmarks.run` starts it; by hand:

    horovodrun -np 2 python -m benchmarks.collectives --peer rueda

algbw = bytes / time; busbw = algbw x factor, the usual factors: allreduce 2(n-1)/n, broadcast 1, else
(n-1)/n. Bytes are the input's, for allgather the whole output's. Every result is checked first.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from benchmarks import peers
from benchmarks.measure import measure

SIZES = (4, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
OTHER_SIZES = (1 << 10, 1 << 20, 64 << 20)
SIZES_OF: dict[str, tuple[int, ...]] = {"allreduce": SIZES, "barrier": (0,)}
OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "adasum", "barrier")


@dataclass
class Case:
    """A collective on float32 tensors of one size, ready to be called again and again."""

    call: Callable[[], torch.Tensor]
    input: torch.Tensor
    base: torch.Tensor  # rank r's input is base + r (of Adasum: base, so that the result is, too)
    expected: torch.Tensor
    size_bytes: int
    bus_factor: float


def case(peer: peers.Peer, operation: str, size_bytes: int) -> Case:
    n, rank = peer.size, peer.rank
    count = max(1, size_bytes // 4)
    if operation == "allgather":
        count = max(1, count // n)
    elif operation in ("alltoall", "reducescatter"):
        count = max(n, count // n * n)
    base = torch.arange(count).remainder_(7).float()
    tensor = torch.empty(count)
    mine = slice(rank * (count // n), (rank + 1) * (count // n))
    summed = base * n + n * (n - 1) // 2
    if operation == "allreduce":
        return Case(lambda: peer.allreduce(tensor), tensor, base, summed, count * 4, 2 * (n - 1) / n)
    if operation == "broadcast":
        return Case(lambda: peer.broadcast(tensor), tensor, base, base, count * 4, 1.0)
    if operation == "barrier":
        nothing = torch.empty(0)

        def meet() -> torch.Tensor:
            peer.barrier()
            return nothing

        return Case(meet, nothing, nothing, nothing, 0, 0.0)
    if operation == "adasum":
        same = base - rank
        return Case(lambda: peer.adasum(tensor), tensor, same, base, count * 4, 2 * (n - 1) / n)
    factor = (n - 1) / n
    if operation == "allgather":
        out = torch.empty(count * n)
        expected = torch.cat([base + r for r in range(n)])
        return Case(lambda: peer.allgather(tensor, out), tensor, base, expected, count * n * 4, factor)
    if operation == "alltoall":
        out = torch.empty(count)
        expected = torch.cat([base[mine] + r for r in range(n)])
        return Case(lambda: peer.alltoall(tensor, out), tensor, base, expected, count * 4, factor)
    out = torch.empty(count // n)
    return Case(lambda: peer.reducescatter(tensor, out), tensor, base, summed[mine], count * 4, factor)


def path_taken(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str:
    """The data path with most new bytes, "" where the peer does not tell."""
    moved = {path: size - before.get(path, (0, 0))[1] for path, (_, size) in after.items()}
    return max(moved, key=lambda path: moved[path], default="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=peers.NAMES, required=True)
    parser.add_argument("--json", help="append one line per result to this file")
    parser.add_argument("--min-time-s", type=float, default=0.2, help="per operation and size")
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = peers.create(args.peer)
    for operation in filter(peer.offers, OPERATIONS):
        for size_bytes in SIZES_OF.get(operation, OTHER_SIZES):
            if size_bytes > args.max_bytes:
                continue
            it = case(peer, operation, size_bytes)
            if args.peer != "limit":
                it.input.copy_(it.base + peer.rank)
                if not torch.equal(it.call().reshape(-1), it.expected):
                    sys.exit(f"{args.peer}: {operation} of {size_bytes} bytes is wrong on rank {peer.rank}")
            it.input.zero_()  # zeros stay finite however often they are summed
            before = peer.paths()
            timing = measure(peer, it.call, min_time_s=args.min_time_s, max_calls=3000)
            if peer.rank != 0:
                continue
            algbw = it.size_bytes / timing.median_s / 1e9
            row = {
                "peer": args.peer,
                "operation": operation,
                "ranks": peer.size,
                "bytes": it.size_bytes,
                "median_s": timing.median_s,
                "p99_s": timing.p99_s,
                "min_s": timing.min_s,
                "calls": timing.calls,
                "others_cpus": timing.others_cpus,
                "algbw_gb_s": algbw,
                "busbw_gb_s": algbw * it.bus_factor,
                "path": path_taken(before, peer.paths()),
            }
            print(
                f"{operation:13} {it.size_bytes:>10} B  median {timing.median_s * 1e6:10.2f} us  "
                f"p99 {timing.p99_s * 1e6:10.2f} us  busbw {row['busbw_gb_s']:7.2f} GB/s  "
                f"others {timing.others_cpus:.2f}  {row['path']}",
                flush=True,
            )
            if args.json:
                with open(args.json, "a") as file:
                    file.write(json.dumps(row) + "\n")
    peer.close()


if __name__ == "__main__":
    main()
