"""Time from `horovodrun` to the first finished allreduce of ranks on several simulated hosts, by phase.

    python -m benchmarks.startup_hosts --hosts 4 --ranks-per-host 4 --rounds 7

The hosts are network namespaces of this machine (`tests/hosts/`). All ranks, ssh clients and servers share
its cores, so a figure is CPU time more than anything else. The program of the ranks imports no framework.
Needs root. A phase ends when the last host or rank has ended it; authentication is what the handshakes of
Farandole's own connections cost both sides, measured apart.
"""

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks.rows import say
from tests.hosts.simulated import SimulatedHosts, why_not

from horovod.bench.measure import wait_for_quiet
from horovod.bench.result import machine
from horovod.bootstrap.trust.handshake import Acceptor, Dialer, Purpose, Role

TIMEOUT_S = 120.0

# What horovodrun --verbose says when a phase of its own has ended, and what that phase was.
NARRATED = {
    "remote hosts: ": "launcher",
    " is reached: ": "ssh",
    " runs as process ": "fork",
}
# What a rank stamps, in order.
STAMPED = ("python", "import", "init", "allreduce")

PROGRAM = """
import time
stamps = [time.time()]
import array, os
from horovod import _core
from horovod.runtime import lifecycle
stamps.append(time.time())
runtime = lifecycle.start()
stamps.append(time.time())
value, total = array.array("d", [1.0]), array.array("d", [0.0])
addresses = value.buffer_info()[0], total.buffer_info()[0]
engine = runtime.engine
engine.submit(0, "x", (*addresses, 9, (1,)), 1, 1.0, 1.0, 0, 0, 2)
stamps.append(time.time())
assert total[0] == float(os.environ["HOROVOD_SIZE"])
print(*stamps, flush=True)
lifecycle.stop()
"""


def one_start(hosts: SimulatedHosts, ranks_per_host: int, caches: str) -> dict[str, float]:
    """Seconds by phase, `total` to the allreduce, and `end` of everything.

    Args:
        caches: folder for compiled modules, which an installed package has beside it.

    Raises:
        RuntimeError: the job failed.
    """
    size = len(hosts.names) * ranks_per_host
    placed = ",".join(f"{name}:{ranks_per_host}" for name in hosts.names)
    words = [sys.executable, "-m", "horovod.runner.launch", "--verbose", "-np", str(size), "-H", placed]
    words += [sys.executable, "-c", PROGRAM]
    extra = {"PYTHONPYCACHEPREFIX": caches, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as printed:
        began = time.time()
        process = hosts.popen(0, *words, extra=extra, stdout=printed.fileno())
        assert process.stderr is not None
        at: dict[str, float] = {}
        said = b""
        for line in process.stderr:
            said += line
            for pattern, phase in NARRATED.items():
                if pattern.encode() in line:
                    at[phase] = time.time()
        code = process.wait(TIMEOUT_S)
        ended = time.time()
        printed.seek(0)
        lines = printed.read().decode().splitlines()
    if code != 0 or len(lines) != size:
        raise RuntimeError(f"the job ended with {code}: {said.decode()}")
    stamps = [[float(word) for word in line.partition(">:")[2].split()] for line in lines]
    for number, phase in enumerate(STAMPED):
        at[phase] = max(stamp[number] for stamp in stamps)
    taken, last = {}, began
    for phase in [*NARRATED.values(), *STAMPED]:
        taken[phase] = max(0.0, at[phase] - last)
        last = max(last, at[phase])
    return {**taken, "total": last - began, "end": ended - began}


def handshake_s() -> float:
    """What one handshake costs both of its sides in computing."""
    key = bytes(range(32))
    count = 500
    began = time.process_time()
    for _ in range(count):
        dialer = Dialer(key, Purpose(Role.STORE))
        acceptor = Acceptor(key, lambda purpose: True)
        acceptor.verify(dialer.answer(acceptor.reply(dialer.hello)))
    return (time.process_time() - began) / count


def handshakes(hosts: int, ranks_per_host: int) -> int:
    """Connections to the store, between ranks of different hosts, and of the control tree."""
    size = hosts * ranks_per_host
    return size + size * (size - ranks_per_host) // 2 + hosts - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quiet-cpus", type=float, default=0.2, help="others may use this many CPUs")
    parser.add_argument("--patience-s", type=float, default=10.0, help="wait so long for quiet")
    parser.add_argument("--json", help="append the result to this file")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as caches, SimulatedHosts(args.hosts) as hosts:
        one_start(hosts, args.ranks_per_host, caches)  # compiles
        for number in range(args.rounds):
            others = wait_for_quiet(args.quiet_cpus, args.patience_s)
            rounds.append(one_start(hosts, args.ranks_per_host, caches))
            print(
                f"round {number + 1}: {rounds[-1]['total']:.2f} s (others use {others:.2f} CPUs)", flush=True
            )
    row: dict[str, Any] = {"hosts": args.hosts, "ranks": args.hosts * args.ranks_per_host, **machine()}
    text = [f"{row['ranks']} ranks on {args.hosts} hosts, {args.rounds} rounds: median (lowest…highest), s"]
    for phase in rounds[0]:
        taken = [one[phase] for one in rounds]
        row[phase] = {"median_s": statistics.median(taken), "least_s": min(taken), "most_s": max(taken)}
        text.append(f"{phase:10} {statistics.median(taken):6.3f} ({min(taken):.3f}…{max(taken):.3f})")
    row["authentication_s"] = handshake_s() * handshakes(args.hosts, args.ranks_per_host)
    share = row["authentication_s"] / row["total"]["median_s"]
    text.append(
        f"authentication {row['authentication_s']:.4f} s of computing in all, {share:.2%} of the total"
    )
    say(row, "\n".join(text), args.json)


if __name__ == "__main__":
    main()
