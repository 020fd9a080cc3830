"""``horovod.run``: functions, arguments and results of every kind, and what a failure says."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import horovod
from horovod.errors import ConfigError, LaunchError, WorkerFailed
from horovod.launch.elastic.discovery import HostDiscovery

pytestmark = pytest.mark.timeout(60)


class Unreadable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("unreadable")


def own_rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def rank_and_size() -> tuple[int, int]:
    import horovod.arrays as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


def fails() -> None:
    raise KeyError("mine")


def test_results_come_back_by_rank() -> None:
    base = {"offset": 10}  # a closure travels by value

    def work(factor: int, *, word: str) -> Any:
        values: list[Any] = [[factor], word, base["offset"] * factor]
        return values[own_rank()]

    assert horovod.run(work, (3,), {"word": "ä"}, num_proc=3) == [[3], "ä", 30]


def test_one_process_and_a_large_result() -> None:
    assert horovod.run(lambda: b"x" * (40 << 20), num_proc=1) == [b"x" * (40 << 20)]


def test_ranks_form_a_world() -> None:
    def work() -> tuple[int, int, list[float]]:
        import torch

        import horovod.torch as hvd

        hvd.init()
        return hvd.rank(), hvd.size(), hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum).tolist()

    assert horovod.run(work, num_proc=2, hosts="localhost:2") == [(0, 2, [2.0]), (1, 2, [2.0])]


def test_large_arguments_lie_in_memory_that_the_ranks_share() -> None:
    import numpy as np

    array = np.arange(4 << 20, dtype=np.float64)  # 32 MiB

    def work(given: Any) -> tuple[float, int, float]:
        total, own_kib, shared_kib = float(given.sum()), 0, 0
        at, inside = given.ctypes.data, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split()[0]:
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                inside = begin <= at < end
            elif inside and line.startswith("Anonymous:"):
                own_kib = int(line.split()[1])
            elif inside and line.startswith("Rss:"):
                shared_kib = int(line.split()[1])
        given[0] = -1.0  # its own copy of that page
        return total, own_kib, shared_kib

    for total, own_kib, resident_kib in horovod.run(work, (array,), num_proc=2):
        assert total == array.sum()
        assert resident_kib > 30 << 10
        assert own_kib < 1 << 10


def test_processes_get_the_variables_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN_AWAY", "1")

    def work() -> tuple[Any, Any]:
        return os.environ.get("ADDED"), os.environ.get("TAKEN_AWAY")

    assert horovod.run(work, env={"ADDED": "a b\nc", "TAKEN_AWAY": None}) == [("a b\nc", None)]


def test_output_goes_to_the_given_streams() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()

    def work() -> None:
        print("out")
        print("err", file=sys.stderr)

    horovod.run(work, stdout=stdout, stderr=stderr)
    assert stdout.getvalue() == "[0]<stdout>:out\n"
    assert "[0]<stderr>:err\n" in stderr.getvalue()


def test_the_way_the_call_came_is_not_open_to_children() -> None:
    def work() -> bool:
        return "HOROVOD_RUN_DESCRIPTORS" in os.environ

    assert horovod.run(work) == [False]


def test_failure_ends_the_others_and_carries_the_exception() -> None:
    def work() -> None:
        if own_rank() == 1:
            raise KeyError("the culprit")
        time.sleep(120.0)

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1 on localhost exited with status 1") as caught:
        horovod.run(work, num_proc=2)
    assert time.monotonic() - began < 30.0
    assert isinstance(caught.value, WorkerFailed)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "KeyError: 'the culprit'" in str(caught.value)
    assert "in work" in str(caught.value)


@pytest.mark.parametrize("result", [threading.Lock, lambda: (_ for _ in ())], ids=["lock", "generator"])
def test_result_that_cannot_be_pickled_is_the_rank_s_error(result: Any) -> None:
    with pytest.raises(WorkerFailed, match=r"cannot pickle|can't pickle"):
        horovod.run(result, num_proc=1)


def test_exception_that_cannot_be_made_again_leaves_its_traceback_at_least() -> None:
    def work() -> None:
        raise Unreadable(1, 2)

    with pytest.raises(WorkerFailed, match="rank 0"):
        horovod.run(work, num_proc=1)


def test_exit_without_a_result_is_named() -> None:
    with pytest.raises(LaunchError, match="rank 0 ended without an error, but before it had a result"):
        horovod.run(os._exit, (0,), num_proc=1)


@pytest.mark.parametrize("status", [0, None])
def test_a_function_that_exits_well_has_no_result(status: int | None) -> None:
    with pytest.raises(LaunchError, match="raised SystemExit on rank 0, so it has no result"):
        horovod.run(sys.exit, (status,), num_proc=1)


def test_exit_status_of_a_function_is_the_rank_s() -> None:
    with pytest.raises(WorkerFailed) as caught:
        horovod.run(sys.exit, (5,), num_proc=1)
    assert caught.value.exit_code == 5


def test_runs_outside_the_main_thread() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(horovod.run(own_rank, num_proc=2)))
    thread.start()
    thread.join(40.0)
    assert results == [[0, 1]]


def test_output_is_shown_through_python_s_streams(capsys: pytest.CaptureFixture[str]) -> None:
    horovod.run(print, ("hello",), num_proc=1)
    assert "[0]<stdout>:hello" in capsys.readouterr().out


def test_hostfile_and_output_folder(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=1\n")
    horovod.run(print, ("kept",), hostfile=str(hostfile), output_filename=str(tmp_path / "logs"))
    assert (tmp_path / "logs" / "rank.0" / "stdout").read_text() == "[0]<stdout>:kept\n"


def test_old_names_warn_and_work() -> None:
    with pytest.deprecated_call(match="np is deprecated"):
        assert horovod.run(own_rank, np=2) == [0, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"hosts": "localhost:1", "hostfile": "file"},
        {"use_gloo": True, "use_mpi": True},
        {"num_proc": 0},
        {"hosts": "localhost:x"},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        horovod.run(own_rank, **wrong)


@pytest.mark.parametrize("name", ["max_num_proc", "slots", "reset_limit", "cooldown_range"])
def test_what_only_elastic_jobs_know_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"horovod.run: {name} means something in an elastic job only"):
        horovod.run(own_rank, **{name: 1})  # type: ignore[arg-type]


class _Two(HostDiscovery):
    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return {"localhost": 2, "127.0.0.1": 2}


@pytest.mark.parametrize(
    "hosts",
    [
        {"hosts": "localhost:2,127.0.0.1:2"},
        {"host_discovery_script": "echo localhost:2; echo 127.0.0.1", "slots": 2},
        {"discovery": _Two()},
    ],
    ids=["fixed", "script", "class"],
)
def test_elastic_jobs_return_the_results_of_the_first_ranks(hosts: dict[str, Any]) -> None:
    found = horovod.run(rank_and_size, num_proc=2, min_num_proc=2, max_num_proc=2, **hosts)
    assert found == [(0, 2), (1, 2)]


def test_a_failure_in_an_elastic_job_carries_the_exception() -> None:
    with pytest.raises(WorkerFailed, match="one or more processes exited with non-zero status") as caught:
        horovod.run(fails, num_proc=1, min_num_proc=1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_both_import_paths_give_the_same_function() -> None:
    from horovod.runner import run

    assert horovod.run is run
