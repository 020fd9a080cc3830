"""Elastic jobs: workers that are killed, nodes that come and go."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import horovod.arrays as hvd
from horovod.elastic.run import run_fn
from horovod.elastic.state import ObjectState
from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.contracts.errors import JobInterrupted

pytest.importorskip("ray", reason="Ray is not installed")

from tests.ray.helpers import await_end, await_free, release, settings
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, WHOLE, in_ray

from horovod.ray import ElasticRayExecutor, RayExecutor, fleet, nodes, ray_logger
from horovod.ray.elastic import RayHostDiscovery as FormerDiscovery
from horovod.ray.elastic_actors import ActorProcess, NodeProbe
from horovod.ray.elastic_v2 import RayHostDiscovery, TestDiscovery

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


def train(steps: int, dies_at: int) -> tuple[int, int, float, int]:
    """Sums ones over all ranks. One rank dies once. Returns rank, size, the sum and the process."""
    hvd.init()
    state: Any = ObjectState(hvd.broadcast_object, hvd.rank, step=0, total=0.0, died=False)

    def loop(state: Any) -> None:
        while state.step < steps:
            if state.step == dies_at and not state.died:
                state.died = True
                state.commit()
                if hvd.rank() == 0:
                    ray_logger.log({"died": os.getpid()})
                    os.kill(os.getpid(), signal.SIGKILL)
            state.total += float(hvd.allreduce(np.ones(2), op=hvd.Sum)[0])
            state.step += 1
            ray_logger.log({"rank": hvd.rank(), "size": hvd.size(), "step": state.step})
            state.commit()

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    run_fn(loop, reset)(state)
    return hvd.rank(), hvd.size(), state.total, os.getpid()


class SlowProbe(NodeProbe):
    """As on a node with much to do."""

    def kill(self, process: ActorProcess) -> None:
        time.sleep(1)
        super().kill(process)


def world_size() -> int:
    hvd.init()
    return hvd.size()


@in_ray
def test_a_job_goes_on_without_a_worker_that_is_killed() -> None:
    release()
    await_free(HEAD_CPUS + OTHER_CPUS)
    heard: list[dict[str, int]] = []
    executor = RayExecutor(settings(), min_workers=1, max_workers=2, cpus_per_worker=2, elastic_timeout=60)
    executor.start(extra_env_vars={"OWN": "7"})
    results = executor.run(train, [4, 2], callbacks=[heard.append])
    died = [each["died"] for each in heard if "died" in each]
    assert len(died) == 1, heard
    sizes = {each["step"]: each["size"] for each in heard if "step" in each}
    assert sorted(sizes) == [1, 2, 3, 4], heard
    assert sizes[1] == sizes[2] == 2, heard
    assert [each[0] for each in results] == list(range(len(results))), results
    for _, size, total, pid in results:
        assert size == len(results)
        assert total == sum(sizes.values()), (results, sizes)
        assert pid != died[0]
    await_end([*died, *(each[3] for each in results)])
    await_free(HEAD_CPUS + OTHER_CPUS)


@in_ray
def test_what_an_elastic_job_has_no_room_for_or_cannot_do() -> None:
    few = RayExecutor(settings(), min_workers=20, elastic_timeout=1)
    with pytest.raises(TimeoutError, match=r"room for 6 workers after 1 s, and min_workers is 20: .* CPU"):
        few.start()
    with pytest.raises(LaunchError, match=r"run: it is not started"):
        few.run(train, [1, 9])
    executor = RayExecutor(settings(), min_workers=1)
    executor.start()
    with pytest.raises(NotImplementedError, match="no fixed ranks"):
        executor.run_remote(train)
    with pytest.raises(NotImplementedError, match=r"Call execute\(\)"):
        executor.execute_single(len)
    lock = threading.Lock()
    with pytest.raises(LaunchError, match="variable 'lock' of the function cannot be pickled"):
        executor.run(lambda: lock)
    executor.shutdown()
    with pytest.raises(ValueError, match="max_workers means something in an elastic job only"):
        RayExecutor(settings(), max_workers=2)
    with pytest.raises(ValueError, match="are for jobs of a fixed size"):
        RayExecutor(settings(), min_workers=2, num_workers=2)
    with pytest.raises(ValueError, match="max_workers=1 is less than min_workers=2"):
        RayExecutor(settings(), min_workers=2, max_workers=1)


@in_ray
def test_nodes_are_found_with_room_for_workers() -> None:
    found = RayHostDiscovery().find_available_hosts_and_slots()
    assert sorted(found.values()) == [OTHER_CPUS, HEAD_CPUS]
    assert "127.0.0.1" in found
    assert list(FormerDiscovery(cpus_per_slot=3).find_available_hosts_and_slots().values()) == [1]
    with_gpus = RayHostDiscovery(use_gpu=True, cpus_per_worker=0.5, gpus_per_worker=2)
    assert list(with_gpus.find_available_hosts_and_slots().values()) == [2]
    changing = TestDiscovery(1, 2, 0.0, verbose=False)
    counts = [len(changing.find_available_hosts_and_slots()) for _ in range(12)]
    assert counts == [1, 2] * 6


def test_two_threads_ask_for_nodes_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the discovery of a job does, and its fleet."""
    there = [nodes.Node(f"{number:08x}", "10.0.0.1", "host", {}) for number in range(200)]
    monkeypatch.setattr(nodes, "alive_nodes", lambda: random.sample(there, 100))
    names = nodes.NodeNames()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            done = [threads.submit(lambda: [names.nodes() for _ in range(200)]) for _ in range(2)]
            for found in (each for thread in done for each in thread.result()):
                assert len(found) == 100
    finally:
        sys.setswitchinterval(interval_s)


@whole
@in_ray
def test_a_function_that_fails_everywhere_ends_the_job() -> None:
    def fail() -> None:
        raise KeyError("no such column")

    executor = RayExecutor(settings(), min_workers=1, max_workers=2, elastic_timeout=20)
    executor.start()
    with pytest.raises(WorkerFailed, match=r"rank \d on .* raised KeyError") as raised:
        executor.run(fail)
    assert isinstance(raised.value.__cause__, KeyError)
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
def test_a_rank_that_returns_early_ends_the_job_and_keeps_its_result() -> None:
    def leave_early() -> int:
        hvd.init()
        state: Any = ObjectState(hvd.broadcast_object, hvd.rank)

        def loop(state: Any) -> None:
            hvd.allreduce(np.ones(1))
            if hvd.rank() == 1:
                hvd.allreduce(np.ones(1))
                state.commit()

        def reset() -> None:
            hvd.shutdown()
            hvd.init()

        run_fn(loop, reset)(state)
        return hvd.rank()

    executor = RayExecutor(settings(), min_workers=2, max_workers=2, elastic_timeout=60)
    executor.start()
    assert executor.run(leave_early) == [0]


@in_ray
def test_a_signal_to_the_driver_reaches_the_worker_with_a_handler_and_no_other() -> None:
    def wait_for_a_signal() -> list[str]:
        hvd.init()
        came: list[str] = []
        if hvd.rank() == 0:
            for signum in (signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(signum, lambda signum, _: came.append(signal.Signals(signum).name))
        ray_logger.log({"ready": hvd.rank()})
        while hvd.rank() == 0 and "SIGUSR2" not in came:
            time.sleep(0.01)
        hvd.allreduce(np.ones(1))
        return came

    def send(said: dict[str, int]) -> None:
        ready.add(said["ready"])
        if len(ready) == 2:
            for signum in (signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(os.getpid(), signum)

    ready: set[int] = set()
    executor = RayExecutor(settings(), min_workers=2, max_workers=2, elastic_timeout=60)
    executor.start()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        results = executor.run(wait_for_a_signal, callbacks=[send])
    assert results == [["SIGUSR1", "SIGUSR2"], []]
    for name in ("SIGUSR1", "SIGUSR2"):
        assert f"{name} does not go to rank 1, which has no handler for it" in said.getvalue()
    assert "SIGWINCH" not in said.getvalue()


@whole
@in_ray
def test_a_stopped_worker_does_not_outlive_its_job() -> None:
    def linger() -> None:
        hvd.init()
        ray_logger.log({"process": os.getpid()})
        time.sleep(300)

    def interrupt(said: dict[str, int]) -> None:
        stopped.append(said["process"])
        os.kill(said["process"], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)

    stopped: list[int] = []
    executor = RayExecutor(settings(), min_workers=1, max_workers=1, elastic_timeout=60)
    executor.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fleet, "NodeProbe", SlowProbe)
        with pytest.raises(JobInterrupted):
            executor.run(linger, callbacks=[interrupt])
    try:
        assert len(stopped) == 1
        await_end(stopped, 2.0)  # Ray itself takes five seconds
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@whole
@in_ray
def test_an_executable_is_made_in_each_worker() -> None:
    executor = RayExecutor(settings(), min_workers=2, max_workers=2, elastic_timeout=60)
    executor.start(list, [(1, 2)])
    assert executor.execute(lambda made: (sum(made), world_size())) == [(3, 2)] * 2


@whole
@in_ray
def test_the_former_executor() -> None:
    with pytest.warns(DeprecationWarning, match="use max_num_proc"):
        made = ElasticRayExecutor.create_settings(
            min_num_proc=1, max_np=2, elastic_timeout=60, timeout_s=60, verbose=0
        )
    with pytest.warns(DeprecationWarning, match="use RayExecutor"):
        executor = ElasticRayExecutor(made, cpus_per_slot=2, env_vars={"OWN": 3})
    executor.start()
    assert executor.run(lambda: (world_size() > 0, os.environ["OWN"])) in ([(True, "3")], [(True, "3")] * 2)
    with pytest.raises(ValueError, match="there is no setting nothing"):
        ElasticRayExecutor.create_settings(nothing=1)
