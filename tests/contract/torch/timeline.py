"""Timelines: rank 0 writes files that are complete JSON, soon, whenever somebody looks.

Every case leaves an initialised world behind, with ``HOROVOD_TIMELINE=DYNAMIC`` as before.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.world import Cases

import horovod.torch as hvd

CASES = Cases()
PATIENCE_S = 10.0

Record = dict[str, Any]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder of this rank's own: what another rank would write is not found here."""
    with tempfile.TemporaryDirectory(prefix="timeline-") as path:
        yield Path(path)


@contextlib.contextmanager
def world_with(**variables: str | None) -> Iterator[None]:
    """A world that was formed with these variables; afterwards one with the former ones."""
    before = {name: os.environ.get(name) for name in variables}

    def form(wanted: dict[str, str | None]) -> None:
        hvd.shutdown()
        for name, value in wanted.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        hvd.init()

    form(dict(variables))
    try:
        yield
    finally:
        form(before)


def read(path: Path) -> list[Record]:
    """A file that is complete, or is not written at the moment."""
    records: list[Record] = json.loads(path.read_text())
    return records


def read_meanwhile(path: Path) -> list[Record]:
    """A file that may be written at this very moment: a look into the middle of a write is repeated."""
    for _ in range(4):
        with contextlib.suppress(json.JSONDecodeError):
            return read(path)
        time.sleep(0.001)
    return read(path)


def names(records: list[Record]) -> dict[str, int]:
    """Full name of a tensor -> pid of its row."""
    return {
        record["args"]["name"]: record["pid"]
        for record in records
        if record.get("name") == "process_name" and record["pid"] != 0
    }


def row(records: list[Record], name: str) -> list[str]:
    """What is drawn in a row, in short and without the ticks."""
    pid = names(records).get(name)
    drawn = []
    for record in records:
        if record.get("pid") != pid or record["ph"] not in "BE":
            continue
        arguments = record.get("args", {})
        drawn.append(" ".join([record["ph"], *filter(None, [record.get("name")]), *arguments.values()]))
    return drawn


def ticks(records: list[Record], name: str) -> list[str]:
    pid = names(records)[name]
    return [record["name"] for record in records if record["ph"] == "X" and record["pid"] == pid]


def check_form(records: list[Record]) -> None:
    """Headers, order of time, spans that nest, rows with names."""
    assert records[0]["name"] == "process_name"
    assert abs(records[0]["args"]["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 3600
    assert records[1] == {
        "name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}
    }  # fmt: skip
    depth: dict[int, int] = {}
    last = 0
    for record in records[2:]:
        assert "tid" not in record
        if record["ph"] == "M":
            depth.setdefault(record["pid"], 0)
            continue
        assert record["ts"] >= last
        last = record["ts"]
        if record["ph"] == "i":
            assert record == {"ph": "i", "name": "CYCLE_START", "ts": last, "s": "g"}
        elif record["ph"] == "X":
            assert record["dur"] == 0
        else:
            depth[record["pid"]] += {"B": 1, "E": -1}[record["ph"]]
            assert depth[record["pid"]] >= 0


def work(name: str) -> None:
    hvd.allreduce(torch.ones(3), name=name, op=hvd.Sum)


def operation(what: str, activity: str, arguments: str) -> list[str]:
    return [f"B NEGOTIATE_{what}", "E", f"B {what}", f"B {activity}", "E", f"E {arguments}"]


@CASES.add
def four_files_follow_each_other_with_and_without_marks() -> None:
    with folder() as here:
        for number in range(4):
            path, marks = here / f"{number}.json", number % 2 == 1
            hvd.start_timeline(str(path), mark_cycles=marks)
            if hvd.rank() == 0:
                assert path.exists()
            # Without a barrier: others may be here while rank 0 still closes the file before.
            work(f"tl.file{number}")
            hvd.stop_timeline()
            if hvd.rank() != 0:
                assert not path.exists()
                continue
            text = path.read_text()
            assert "start_time_since_epoch_in_micros" in text
            assert ("CYCLE_START" in text) is marks
            records = json.loads(text)
            check_form(records)
            name = f"allreduce.tl.file{number}"
            assert row(records, name) == operation("ALLREDUCE", "GLOO_ALLREDUCE", "float32 [3]")
            assert sorted(ticks(records, name)) == [str(rank) for rank in range(hvd.size())]
            assert min(names(records).values()) == 1


@CASES.add
def what_happened_is_on_disk_after_a_tenth_of_a_second() -> None:
    with folder() as here:
        path = here / "timeline.json"
        with world_with(HOROVOD_TIMELINE=str(path), HOROVOD_TIMELINE_MARK_CYCLES="1"):
            work("tl.soon")
            ended = time.monotonic()
            wanted = ("allreduce.tl.soon", '"NEGOTIATE_ALLREDUCE"', '"ALLREDUCE"', "CYCLE_START")
            if hvd.rank() == 0:
                # 0.1 s on a machine that is not overloaded; tests share theirs.
                while not all(text in path.read_text() for text in wanted):
                    assert time.monotonic() < ended + PATIENCE_S, path.read_text()
                    time.sleep(0.005)
                print(f"on disk after {time.monotonic() - ended:.3f} s", flush=True)
                check_form(read_meanwhile(path))
            hvd.barrier()
        if hvd.rank() == 0:
            check_form(read(path))
        else:
            assert not path.exists()


@CASES.add
def every_kind_of_operation_has_its_names() -> None:
    n = hvd.size()
    with folder() as here:
        path = here / "timeline.json"
        hvd.start_timeline(str(path))
        hvd.grouped_allreduce([torch.ones(2, 3), torch.ones(4, dtype=torch.int64)], name="tl.g", op=hvd.Sum)
        hvd.allgather(torch.ones(hvd.rank() + 1, 2), name="tl.ag")
        hvd.broadcast(torch.ones(5), 0, name="tl.bc")
        hvd.alltoall(torch.ones(n, 2), name="tl.a2a")
        hvd.reducescatter(torch.ones(n, 2), name="tl.rs", op=hvd.Sum)
        if n & (n - 1) == 0:
            hvd.allreduce(torch.ones(2), name="tl.adasum", op=hvd.Adasum)
        hvd.allreduce(torch.ones(1), name='tl."odd"\\\n name', op=hvd.Sum)
        if n > 1:
            with pytest.raises(hvd.HorovodInternalError):
                hvd.allreduce(torch.ones(hvd.rank() + 1), name="tl.wrong")
        hvd.barrier()
        hvd.stop_timeline()
        if hvd.rank() != 0:
            return
        records = read(path)
        check_form(records)
        group = "grouped_allreduce.tl.g"
        assert row(records, f"{group}_1of2") == operation("ALLREDUCE", "GLOO_ALLREDUCE", "float32 [2, 3]")
        assert row(records, f"{group}_2of2") == operation("ALLREDUCE", "GLOO_ALLREDUCE", "int64 [4]")
        gathered = row(records, "allgather.tl.ag")
        assert gathered[:4] == ["B NEGOTIATE_ALLGATHER", "E", "B ALLGATHER", "B GLOO_ALLGATHER"]
        assert gathered[4:] == ["B ALLOCATE_OUTPUT", "E", "E", "E float32 [1, 2]"]
        assert row(records, "broadcast.tl.bc") == operation("BROADCAST", "GLOO_BCAST", "float32 [5]")
        exchanged = row(records, "alltoall.tl.a2a")
        assert exchanged[:4] == ["B NEGOTIATE_ALLTOALL", "E", "B ALLTOALL", "B MPI_ALLTOALL"]
        assert exchanged[-1] == f"E float32 [{n}, 2]"
        scattered = row(records, "reducescatter.tl.rs")
        assert scattered[:3] == ["B NEGOTIATE_REDUCESCATTER", "E", "B REDUCESCATTER"]
        assert scattered[3] == "B GLOO_REDUCESCATTER"
        if n & (n - 1) == 0:
            adasum = operation("ADASUM", "MPI_ADASUM_ALLREDUCE", "float32 [2]")
            assert row(records, "allreduce.tl.adasum") == adasum
        assert 'allreduce.tl."odd"\\\n name' in names(records)
        if n > 1:
            wrong = row(records, "allreduce.tl.wrong")
            assert wrong == ["B NEGOTIATE_ALLREDUCE", "E", "B ERROR", "E"]
        [barrier] = [name for name in names(records) if name.startswith("barrier.noname")]
        assert row(records, barrier)[:2] == ["B NEGOTIATE_BARRIER", "E"]
        assert not any(record.get("name") == "BARRIER" for record in records)


@CASES.add
def a_row_belongs_to_a_process_set_and_its_ticks_to_positions_in_it() -> None:
    n = hvd.size()
    members = hvd.add_process_set([0, n - 1]) if n > 2 else hvd.global_process_set
    others = hvd.add_process_set([1, n - 1]) if n > 2 else None
    with folder() as here:
        path = here / "timeline.json"
        hvd.start_timeline(str(path))
        hvd.barrier()
        if members.included():
            hvd.allreduce(torch.ones(1), name="tl.set", process_set=members)
        if others is not None and others.included():
            hvd.allreduce(torch.ones(1), name="tl.other", process_set=others)
        hvd.barrier()
        hvd.stop_timeline()
        if hvd.rank() == 0:
            records = read(path)
            check_form(records)
            name = "allreduce.tl.set"
            assert row(records, name) == operation("ALLREDUCE", "GLOO_ALLREDUCE", "float32 [1]")
            assert sorted(ticks(records, name)) == ["0", "1"][:n]
            if others is not None:
                # Rank 0 hears of it and has no part in it.
                assert row(records, "allreduce.tl.other") == ["B NEGOTIATE_ALLREDUCE", "E"]
                assert sorted(ticks(records, "allreduce.tl.other")) == ["0", "1"]
    for process_set in (members, others):
        if n > 2 and process_set is not None:
            assert hvd.remove_process_set(process_set)


@CASES.add
def the_file_is_json_at_any_moment() -> None:
    with folder() as here:
        path = here / "timeline.json"
        hvd.start_timeline(str(path), mark_cycles=True)
        over = threading.Event()
        looks: list[int] = []
        errors: list[Exception] = []

        def look() -> None:
            while not over.is_set():
                try:
                    looks.append(len(read_meanwhile(path)))
                except Exception as error:
                    errors.append(error)
                time.sleep(0.003)

        if hvd.rank() == 0:
            thread = threading.Thread(target=look)
            thread.start()
        for _ in range(30):
            handles = [hvd.allreduce_async(torch.ones(2), name=f"tl.many.{i}") for i in range(10)]
            handles.append(hvd.allreduce_async(torch.ones(2)))  # a row of its own each time
            for handle in handles:
                hvd.synchronize(handle)
            time.sleep(0.01)
        over.set()
        if hvd.rank() == 0:
            thread.join(PATIENCE_S)
            assert errors == []
            assert len(set(looks)) > 2  # it grew
        hvd.stop_timeline()
        if hvd.rank() == 0:
            records = read(path)
            check_form(records)
            assert sum(name.startswith("allreduce.tl.many.") for name in names(records)) == 10
            assert sum(name.startswith("allreduce.noname.") for name in names(records)) == 30


@CASES.add
def starting_twice_and_stopping_twice_is_fine() -> None:
    hvd.stop_timeline()
    with folder() as here:
        path = here / "timeline.json"
        hvd.start_timeline(str(path))
        work("tl.twice.1")
        hvd.start_timeline(str(path), mark_cycles=True)  # the same file: nothing changes
        work("tl.twice.2")
        hvd.stop_timeline()
        hvd.stop_timeline()
        work("tl.twice.3")
        if hvd.rank() == 0:
            seen = names(read(path))
            assert {"allreduce.tl.twice.1", "allreduce.tl.twice.2"} <= seen.keys()
            # At most somebody else's report of it came before rank 0 stopped.
            assert "B ALLREDUCE" not in row(read(path), "allreduce.tl.twice.3")
        hvd.start_timeline(str(path))  # once more: from the beginning
        work("tl.twice.4")
        hvd.stop_timeline()
        if hvd.rank() == 0:
            assert "allreduce.tl.twice.1" not in names(read(path))
            assert "allreduce.tl.twice.4" in names(read(path))


@CASES.add
def another_file_takes_over_from_that_of_the_environment() -> None:
    with folder() as here:
        first, second = here / "first.json", here / "second.json"
        with world_with(HOROVOD_TIMELINE=str(first)):
            work("tl.first")
            hvd.start_timeline(str(second))
            work("tl.second")
        if hvd.rank() == 0:
            assert "allreduce.tl.first" in names(read(first))
            assert "B ALLREDUCE" not in row(read(first), "allreduce.tl.second")
            # Nobody has stopped it: the end of the world did.
            assert "allreduce.tl.second" in names(read(second))


@CASES.add
def a_file_without_operations_is_an_empty_array() -> None:
    with folder() as here:
        path = here / "timeline.json"
        hvd.start_timeline(str(path))
        hvd.stop_timeline()
        if hvd.size() == 1:
            assert path.read_text() == "[]"
        elif hvd.rank() == 0:
            read(path)  # others may be ahead


@CASES.add
def a_file_that_cannot_be_written_is_no_exception() -> None:
    with folder() as here:
        if hvd.rank() == 0:
            (here / "file").touch()
        hvd.start_timeline(str(here / "file" / "trace.json"), mark_cycles=True)
        work("tl.nowhere")
        hvd.stop_timeline()


@CASES.add
def folders_of_the_file_are_made() -> None:
    with folder() as here:
        path = here / "hvd_logs" / "of_today" / "trace.log"
        hvd.start_timeline(str(path))
        work("tl.folder")
        hvd.stop_timeline()
        if hvd.rank() == 0:
            read(path)


@CASES.add
def without_the_variable_there_is_no_timeline() -> None:
    with folder() as here, world_with(HOROVOD_TIMELINE=None):
        with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
            hvd.start_timeline(str(here / "timeline.json"))
        hvd.stop_timeline()
        work("tl.without")
        assert os.listdir(here) == []


@CASES.add
def only_upper_case_arms_without_recording() -> None:
    with folder() as here:
        before = os.getcwd()
        os.chdir(here)
        try:
            with world_with(HOROVOD_TIMELINE="dynamic"):
                work("tl.lower")
                hvd.barrier()
            assert os.listdir(here) == (["dynamic"] if hvd.rank() == 0 else [])
            with world_with(HOROVOD_TIMELINE="DYNAMIC"):
                work("tl.upper")
                hvd.barrier()
            assert os.listdir(here) == (["dynamic"] if hvd.rank() == 0 else [])
        finally:
            os.chdir(before)


@CASES.add
def before_init_it_is_a_value_error() -> None:
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.start_timeline("timeline.json")
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.stop_timeline()
    assert not os.path.exists("timeline.json")
    hvd.init()
