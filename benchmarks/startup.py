"""Time from the library's import to its first finished allreduce, and memory it takes: one rank of one peer.

Importing torch is excluded. The time is that of the rank that came last: it waited for nobody. Memory is
the growth of the proportional set size (shared pages divided among their users) over start-up and three
allreduces of 64 MiB, whose tensor was touched before.
"""

import argparse
import time

import psutil
import torch
from benchmarks import peers
from benchmarks.rows import say

from horovod.bench.work import single


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=peers.NAMES, required=True)
    parser.add_argument("--json", help="append the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    process = psutil.Process()
    tensor, small = torch.zeros(16 << 20), torch.zeros(1)
    tensor.add_(tensor)
    before = process.memory_full_info()
    started = time.perf_counter()
    peer = peers.create(args.peer)
    peer.blocking(single("allreduce", small, "small"))()
    taken_s = time.perf_counter() - started
    call = peer.blocking(single("allreduce", tensor, "large"))
    for _ in range(3):
        call()
    after = process.memory_full_info()
    figures = torch.zeros(peer.size, 3)
    figures[peer.rank] = torch.tensor(
        [taken_s, (after.pss - before.pss) / 2**20, (after.rss - before.rss) / 2**20]
    )
    figures = peer.total(figures.view(-1)).view(peer.size, 3)
    if peer.rank == 0:
        row = {
            "peer": args.peer,
            "ranks": peer.size,
            "startup_s": figures[:, 0].min().item(),
            "pss_mib": figures[:, 1].max().item(),
            "rss_mib": figures[:, 2].max().item(),
        }
        say(row, str(row), args.json)
    peer.close()


if __name__ == "__main__":
    main()
