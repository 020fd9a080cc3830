"""Time and bandwidth of collectives: one rank of one peer. `benchmarks.run` starts it; by hand:

    horovodrun -np 2 python -m benchmarks.collectives --peer farandole

What is measured, and how, is that of `python -m horovod.bench`. Every result is checked first.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from benchmarks import peers
from benchmarks.rows import say

from horovod.bench.measure import measure
from horovod.bench.peers import check, path_taken
from horovod.bench.result import algorithm_bandwidth, bus_factor
from horovod.bench.work import make_work

SIZES = (4, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
OTHER_SIZES = (1 << 10, 1 << 20, 64 << 20)
SIZES_OF: dict[str, tuple[int, ...]] = {"allreduce": SIZES, "barrier": (0,)}
OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "adasum", "barrier")


def offered(peer: peers.Peer, name: str, operation: str) -> bool:
    """Return whether `peer` has the operation; "adasum" is an allreduce of Farandole."""
    if operation == "adasum":
        return name == "farandole" and peer.size & (peer.size - 1) == 0
    return peer.offers(operation)


def sizes_of(operation: str, asked: Sequence[int] | None) -> Sequence[int]:
    """Bytes to measure ``operation`` at."""
    if operation == "barrier":
        return SIZES_OF[operation]
    return asked or SIZES_OF.get(operation, OTHER_SIZES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=sorted({*peers.NAMES, *peers.BETWEEN_HOSTS}), required=True)
    parser.add_argument("--json", help="append one line per result to this file")
    parser.add_argument("--min-time-s", type=float, default=0.2, help="per operation and size")
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes, for every operation")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--max-calls", type=int, default=3000, help="per operation and size")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = peers.create(args.peer)
    for operation in args.operations:
        if not offered(peer, args.peer, operation):
            continue
        for size_bytes in sizes_of(operation, args.sizes):
            if size_bytes > args.max_bytes:
                continue
            collective, op = ("allreduce", "adasum") if operation == "adasum" else (operation, "sum")
            work = make_work(collective, size_bytes, ranks=peer.size, dtype="float32", op=op)
            call = peer.blocking(work)
            if args.peer not in ("limit", "wire") and (wrong := check(peer, [work], call)):
                sys.exit(f"{args.peer}: rank {peer.rank}: {wrong}")
            before = peer.paths()
            timing = measure(peer, call, min_time_s=args.min_time_s, max_calls=args.max_calls)
            if peer.rank != 0:
                continue
            algbw = algorithm_bandwidth(work.size_bytes, timing.median_s)
            row = {
                "peer": args.peer,
                "operation": operation,
                "ranks": peer.size,
                "bytes": work.size_bytes,
                "median_s": timing.median_s,
                "p99_s": timing.p99_s,
                "min_s": timing.min_s,
                "calls": timing.calls,
                "others_cpus": timing.others_cpus,
                "algbw_gb_s": algbw,
                "busbw_gb_s": algbw * bus_factor(collective, peer.size),
                "path": path_taken(before, peer.paths()),
            }
            say(
                row,
                f"{operation:13} {work.size_bytes:>10} B  median {timing.median_s * 1e6:10.2f} us  "
                f"p99 {timing.p99_s * 1e6:10.2f} us  busbw {row['busbw_gb_s']:7.2f} GB/s  "
                f"others {timing.others_cpus:.2f}  {row['path']}",
                args.json,
            )
    peer.close()


if __name__ == "__main__":
    main()
