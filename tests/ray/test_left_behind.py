"""What is left when a start fails or is interrupted, or the connection to Ray ends: nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from horovod.errors import ConfigError, LaunchError

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.ray.helpers import await_end, await_free, release, settings, summed
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, WHOLE, in_ray

from horovod.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor
from horovod.ray.strategy import create_placement_group
from horovod.ray.utils import detect_nics

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


def states_of_groups() -> set[str]:
    return {group["state"] for group in ray.util.placement_group_table().values()}


@in_ray
def test_an_interrupted_wait_for_room_leaves_no_placement_group() -> None:
    release()
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    executor = RayExecutor(settings(), num_workers=50)
    # A shell without job control lets what it starts in the background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            executor.start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert states_of_groups() <= {"REMOVED"}


@in_ray
def test_workers_that_take_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="Ray reserves CPUs or GPUs for workers: CPU 0 is nothing"):
        RayExecutor(settings(), num_workers=1, cpus_per_worker=0).start()
    with pytest.raises(ConfigError, match="need CPUs or GPUs"):
        RayExecutor(settings(), min_workers=1, cpus_per_worker=0)


@whole
@in_ray
def test_who_keeps_the_error_keeps_no_actor() -> None:
    """As a notebook does. The placement group is that of the caller, and has room for one of two."""
    release()
    group, _ = create_placement_group({"CPU": 1}, 1, 30, "PACK")

    def inside() -> tuple[str, bool]:
        executor = RayExecutor(settings(placement_group_timeout_s=10), num_workers=2)
        try:
            executor.start()
        except TimeoutError as error:
            # The one CPU of the group is free again: another executor starts.
            with RayExecutor(settings(placement_group_timeout_s=100), num_workers=1) as other:
                other.start()
                return str(error), other.run(summed, [3]) == [3.0]
        raise AssertionError("there was room")

    where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    try:
        said, started = ray.get(
            ray.remote(inside).options(num_cpus=0, scheduling_strategy=where).remote(), timeout=200
        )
    finally:
        ray.util.remove_placement_group(group)
    assert "Not all of 2 actors answer after 10 s (missing: rank 1)" in said
    assert "Is there room for them in the placement group?" in said
    assert started


@whole
@in_ray
def test_a_connection_that_has_ended_has_ended_the_job() -> None:
    release()
    executor = RayExecutor(settings(), num_workers=1)
    executor.start()
    pids = executor.run(os.getpid)
    elastic = RayExecutor(settings(), min_workers=1, max_workers=1)
    elastic.start()
    ray.shutdown()
    try:
        await_end(pids)
        with pytest.raises(LaunchError, match=r"ray.shutdown\(\) has ended its actors"):
            executor.run(os.getpid)
        with pytest.raises(LaunchError, match=r"RayExecutor.run needs Ray"):
            elastic.run(os.getpid)
        assert not ray.is_initialized()
    finally:
        ray.init(log_to_driver=False)
    with pytest.raises(LaunchError, match=r"ray.shutdown\(\) has ended its actors"):
        executor.run(os.getpid)
    executor.shutdown()
    executor.start()
    assert executor.run(summed, [3]) == [3.0]
    executor.shutdown()
    await_free(HEAD_CPUS + OTHER_CPUS)


@whole
@in_ray
def test_hosts_whose_interfaces_nobody_tells_are_named() -> None:
    release()
    actors = [ray.remote(BaseHorovodWorker).options(num_cpus=0).remote() for _ in range(2)]
    ray.get([actor.hostname.remote() for actor in actors])
    actors[1].execute.remote(lambda _: time.sleep(300))
    with pytest.raises(TimeoutError, match="actors on elsewhere do not answer after 3 s"):
        detect_nics(settings(timeout_s=3), ["there", "elsewhere"], node_workers=actors)
    for actor in actors:
        ray.kill(actor)


@whole
@in_ray
def test_a_driver_by_ray_client_is_refused() -> None:
    """It is outside the cluster: ranks could not reach its store."""
    release()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.util.client.server", "--mode", "specific-server"),
            *("--address", os.environ["RAY_ADDRESS"], "--host", "127.0.0.1", "--port", str(port)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ray.shutdown()
    try:
        ray.init(f"ray://127.0.0.1:{port}")  # tries for 30 s
        for executor in (
            RayExecutor(settings(), num_workers=1),
            RayExecutor(settings(), min_workers=1),
            ElasticRayExecutor(ElasticRayExecutor.create_settings()),
        ):
            with pytest.raises(LaunchError, match="connected by Ray Client, so ranks cannot reach it"):
                executor.start()
    finally:
        ray.shutdown()
        server.kill()
        server.wait()
        ray.init(log_to_driver=False)


@in_ray
def test_what_a_job_around_the_cluster_has_set_reaches_no_rank() -> None:
    from horovod.ray.elastic_actors import ElasticWorker
    from horovod.ray.worker import BaseHorovodWorker

    def outer() -> dict[str, Any]:
        found = {}
        for kind in (ElasticWorker, BaseHorovodWorker):
            os.environ |= {"HOROVOD_STORE": "outer", "HOROVOD_ELASTIC": "1"}
            made = kind()
            if isinstance(made, ElasticWorker):
                made.begin({}, None)
            found[kind.__name__] = {"HOROVOD_STORE", "HOROVOD_ELASTIC"} & set(os.environ)
        return found

    found = ray.get(ray.remote(outer).remote())
    assert found == {"ElasticWorker": set(), "BaseHorovodWorker": set()}
