"""Jobs of a fixed number of ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import horovod.arrays as hvd
from horovod.errors import LaunchError, WorkerFailed

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.ray.helpers import await_end, await_free, place, release, settings, shared, summed
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, WHOLE, in_ray

from horovod.ray import BaseHorovodWorker, RayExecutor, ray_logger
from horovod.ray.failures import ActorFailed
from horovod.ray.strategy import create_placement_group
from horovod.ray.utils import detect_nics, map_blocking, nics_to_env_var

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


class Counter:
    """An executable that keeps what it is told."""

    def __init__(self, start: int, step: int = 1) -> None:
        self.value, self.step = start, step

    def add(self) -> int:
        self.value += self.step * int(os.environ["HOROVOD_RANK"])
        return self.value


@in_ray
def test_functions_run_in_the_order_of_ranks() -> None:
    executor = shared()
    assert executor.run(place) == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]
    assert executor.run(summed, args=[1], kwargs={}) == [3.0] * 2
    assert executor.run(summed, kwargs={"value": 2}) == [5.0] * 2
    assert executor.execute(lambda executable: executable) == [None, None]
    assert executor.execute_single(lambda _: os.environ["HOROVOD_RANK"]) == "0"
    assert ray.get(executor.run_remote(summed, args=[1])) == [3.0] * 2


@in_ray
def test_what_ranks_are_told() -> None:
    found = shared().run(lambda: dict(os.environ))
    nodes = shared().run(lambda: ray.get_runtime_context().get_node_id())
    for rank, environment in enumerate(found):
        assert environment["HOROVOD_RANK"] == str(rank)
        assert environment["HOROVOD_SIZE"] == "2"
        assert environment["HOROVOD_HOSTNAME"] == nodes[rank]
        assert environment["HOROVOD_CONTROLLER"] == environment["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert int(environment["HOROVOD_GLOO_RENDEZVOUS_PORT"]) > 0
        assert len(bytes.fromhex(environment["HOROVOD_SECRET_KEY"])) == 32
        assert (environment["OWN"], environment["HOROVOD_CYCLE_TIME"]) == ("7", "2")


@in_ray
def test_the_key_is_in_no_command_line_and_in_no_file_of_ray() -> None:
    (key, _) = shared().run(lambda: os.environ["HOROVOD_SECRET_KEY"].encode())
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):  # what a process was started with
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                assert key not in (folder / name).read_bytes(), folder
    logs = [file for file in Path(os.environ["RAY_TMPDIR"]).rglob("*") if file.is_file()]
    assert len(logs) > 10
    for file in logs:
        assert key not in file.read_bytes(), file


@in_ray
def test_a_function_that_fails_everywhere_leaves_the_actors_as_they_are() -> None:
    def fail() -> None:
        raise ValueError(f"rank {os.environ['HOROVOD_RANK']} does not like it")

    pids = shared().run(os.getpid)
    with pytest.raises(WorkerFailed, match="does not like it"):
        shared().run(fail)
    assert shared().run(os.getpid) == pids


@in_ray
def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            pass

    with pytest.raises(LaunchError, match=r"variable 'lock' of the function cannot be pickled"):
        shared().run(locked)
    with pytest.raises(LaunchError, match="argument 0 cannot be pickled"):
        shared().run(summed, [lock])
    with pytest.raises(ActorFailed, match=r"rank \d .* has a result that cannot be pickled"):
        shared().run(threading.Lock)
    assert shared().run(summed, [1]) == [3.0] * 2


@in_ray
def test_callbacks_hear_of_every_rank() -> None:
    def talk() -> str:
        for step in range(3):
            ray_logger.log({"rank": int(os.environ["HOROVOD_RANK"]), "step": step})
        return "done"

    heard: list[dict[str, int]] = []
    assert shared().run(talk, callbacks=[heard.append]) == ["done"] * 2
    assert shared().execute(lambda _: talk(), callbacks=[lambda said: None, heard.append]) == ["done"] * 2
    for rank in range(2):
        assert [each["step"] for each in heard if each["rank"] == rank] == [0, 1, 2, 0, 1, 2], heard


@in_ray
def test_after_a_failed_call_with_callbacks_nobody_listens() -> None:
    def fail() -> None:
        ray_logger.log({"rank": int(os.environ["HOROVOD_RANK"])})
        raise ValueError("it fails everywhere")

    def talk() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ray_logger._state.warned = False
            ray_logger.log({"nobody": "listens"})
        return [str(each.message) for each in caught]

    heard: list[dict[str, int]] = []
    with pytest.raises(WorkerFailed, match="it fails everywhere"):
        shared().run(fail, callbacks=[heard.append])
    assert sorted(each["rank"] for each in heard) == [0, 1]
    for warned in shared().run(talk):
        assert ["nobody listens" in each for each in warned] == [True], warned


@in_ray
def test_executables_keep_their_state_until_the_actors_end() -> None:
    with RayExecutor(settings(), num_workers=2) as executor:
        executor.start(Counter, [100], {"step": 10})
        assert executor.execute(lambda counter: counter.add()) == [100, 110]
        assert executor.execute(lambda counter: counter.add()) == [100, 120]
        assert executor.execute_single(lambda counter: counter.value) == 100
        pids = executor.run(os.getpid)
    await_end(pids)


@whole
@in_ray
def test_an_executor_starts_again_with_another_key() -> None:
    keys = set()
    executor = RayExecutor(settings(), num_workers=1)
    for _ in range(2):
        executor.start()
        assert executor.run(summed, [3]) == [3.0]
        keys.update(executor.run(lambda: os.environ["HOROVOD_SECRET_KEY"]))
        with pytest.raises(LaunchError, match="it is started already"):
            executor.start()
        executor.shutdown()
        executor.shutdown()
        with pytest.raises(LaunchError, match="it is not started"):
            executor.run(summed, [3])
    assert len(keys) == 2


@in_ray
def test_the_same_number_on_each_node() -> None:
    release()
    with RayExecutor(settings(), num_hosts=2, num_workers_per_host=2) as executor:
        executor.start()
        assert executor.run(place) == [
            (0, 4, 0, 2, 0, 2),
            (1, 4, 1, 2, 0, 2),
            (2, 4, 0, 2, 1, 2),
            (3, 4, 1, 2, 1, 2),
        ]
        assert executor.run(summed, [0]) == [6.0] * 4
        nodes = executor.run(lambda: os.environ["HOROVOD_HOSTNAME"])
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3], nodes


@whole
@in_ray
def test_ranks_of_a_node_see_the_gpus_of_all_of_them() -> None:
    with RayExecutor(
        settings(), num_hosts=1, num_workers_per_host=2, use_gpu=True, gpus_per_worker=2
    ) as executor:
        executor.start()
        seen = executor.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
        assert seen == ["0,1,2,3"] * 2, seen
    with RayExecutor(settings(), num_workers=2, use_gpu=True, gpus_per_worker=0.5) as executor:
        executor.start()
        assert executor.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"]) == ["0"] * 2


@in_ray
def test_too_few_slots_are_an_error_with_what_there_is() -> None:
    release()
    await_free(HEAD_CPUS + OTHER_CPUS)
    executor = RayExecutor(settings(placement_group_timeout_s=1), num_workers=50)
    with pytest.raises(TimeoutError, match=r"50 times CPU 1 are requested; free .* CPU 6 of 6"):
        executor.start()
    executor = RayExecutor(settings(placement_group_timeout_s=1), num_hosts=3)
    with pytest.raises(TimeoutError, match="3 times CPU 1 on a node of its own"):
        executor.start()
    await_free(HEAD_CPUS + OTHER_CPUS)


@in_ray
def test_a_function_that_fails_ends_the_others_at_once() -> None:
    def fail(rank: int) -> None:
        hvd.init()
        if hvd.rank() == rank:
            raise KeyError("no such column")
        hvd.allreduce(np.ones(3))

    with RayExecutor(settings(), num_workers=2) as executor:
        executor.start()
        pids = executor.run(os.getpid)
        began = time.monotonic()
        with pytest.raises(
            ActorFailed, match=r"rank 1 on node \w+ .*, actor \w+, has raised KeyError"
        ) as raised:
            executor.run(fail, [1])
        assert time.monotonic() - began < 10
        assert isinstance(raised.value, RuntimeError)
        assert isinstance(raised.value.__cause__, KeyError)
        assert "in fail" in str(raised.value)
        assert "1 rank that still ran was ended" in str(raised.value)
        assert raised.value.rank == 1
        with pytest.raises(LaunchError, match=r"some ranks are gone .* rank 1"):
            executor.run(place)
    await_end(pids)


@in_ray
def test_an_actor_that_is_killed_is_named() -> None:
    def wait(rank: int) -> None:
        hvd.init()
        if hvd.rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with RayExecutor(settings(), num_workers=2) as executor:
        executor.start()
        pids = executor.run(os.getpid)
        with pytest.raises(ActorFailed, match=r"rank 1 on node \w+ \(.*\), actor \w+, has died") as raised:
            executor.run(wait, [1])
        assert raised.value.rank == 1
        assert raised.value.actor in str(raised.value)
        executor.shutdown()
        await_end(pids)
        executor.start()
        assert executor.run(summed, [1]) == [3.0] * 2


@whole
@in_ray
def test_a_constructor_that_fails_leaves_nothing() -> None:
    executor = RayExecutor(settings(), num_workers=2)
    with pytest.raises(ActorFailed, match="has raised TypeError"):
        executor.start(Counter)
    await_free(2)
    with pytest.raises(LaunchError, match="is not started"):
        executor.run(place)


@whole
@in_ray
def test_executors_share_a_cluster() -> None:
    with RayExecutor(settings(), num_workers=2) as one, RayExecutor(settings(), num_workers=2) as other:
        one.start()
        other.start()
        first, second = one.run_remote(summed, [1]), other.run_remote(summed, [10])
        assert ray.get(first) == [3.0] * 2
        assert ray.get(second) == [21.0] * 2


@whole
@in_ray
def test_an_executor_stays_in_the_placement_group_of_its_caller() -> None:
    group, bundles = create_placement_group({"CPU": 1}, 2, 30, "PACK")
    assert bundles == [{"CPU": 1}] * 2

    def inside() -> tuple[list[float], bool]:
        with RayExecutor(settings(), num_workers=2) as executor:
            executor.start()
            mine = ray.util.get_current_placement_group().id
            theirs = executor.run(lambda: ray.util.get_current_placement_group().id)
            return executor.run(summed, [1]), all(each == mine for each in theirs)

    where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    try:
        assert ray.get(
            ray.remote(inside).options(num_cpus=0, scheduling_strategy=where).remote(), timeout=100
        ) == ([3.0] * 2, True)
    finally:
        ray.util.remove_placement_group(group)


@in_ray
def test_interfaces_of_the_nodes() -> None:
    hosts = list({node["NodeManagerHostname"] for node in ray.nodes()})
    assert detect_nics(settings(), hosts) == {"lo"}
    assert detect_nics(settings(nics={"eth7"}), hosts) == {"eth7"}
    assert nics_to_env_var({"eth7"}) == {"HOROVOD_GLOO_IFACE": "eth7", "NCCL_SOCKET_IFNAME": "eth7"}
    with pytest.raises(ValueError, match="one actor for each host"):
        detect_nics(settings(), ["elsewhere"], node_workers=[])
    with pytest.raises(LaunchError, match="Ray has no node elsewhere"):
        detect_nics(settings(), ["elsewhere"])
    worker = ray.remote(BaseHorovodWorker).remote(world_rank=3, world_size=4)
    assert map_blocking(lambda each: each.hostname.remote(), [worker]) == hosts
    variables = ray.get(worker.env_vars.remote())
    assert (variables["HOROVOD_RANK"], variables["HOROVOD_SIZE"]) == ("3", "4")
    ray.kill(worker)
