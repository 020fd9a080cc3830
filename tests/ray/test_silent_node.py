"""A node whose machine does not answer any more, in a cluster of its own, as the node does not come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import horovod.arrays as hvd
from horovod.bootstrap.place.proc import every_process
from horovod.elastic.run import run_fn
from horovod.elastic.state import ObjectState

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from tests.ray.helpers import settings
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, WHOLE, Session, in_ray, why_not

from horovod.ray import RayExecutor, ray_logger


@pytest.fixture(scope="module")
def ray_session() -> Iterator[Session]:
    if reason := why_not():
        pytest.skip(reason)
    made = Session()
    yield made
    made.close()


def wait_for_fewer() -> int:
    """Trains until the world has shrunk; its size then."""
    hvd.init()
    state: Any = ObjectState(hvd.broadcast_object, hvd.rank, step=0, most=0)

    def loop(state: Any) -> None:
        while hvd.size() >= state.most:
            state.most = max(state.most, hvd.size())
            hvd.allreduce(np.ones(2))
            state.commit()
            if state.most == HEAD_CPUS + OTHER_CPUS:
                node = ray.get_runtime_context().get_node_id()
                ray_logger.log({"node": node, "raylet": os.getppid()})
            time.sleep(0.1)

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    run_fn(loop, reset)(state)
    return hvd.size()


@pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")
@in_ray
def test_a_node_that_falls_silent_is_done_without() -> None:
    """What Ray itself has not found out after minutes: the processes of a node are stopped, not ended."""
    heard: list[dict[str, int]] = []
    os.environ["HOROVOD_HEARTBEAT_TIMEOUT_SECONDS"] = "5"
    other = next(node["NodeID"] for node in ray.nodes() if node["Resources"].get("other"))
    stopped: list[int] = []

    def stop(message: dict[str, Any]) -> None:
        heard.append(message)
        if message.get("node") == other and not stopped:
            raylet = message["raylet"]
            stopped.extend([raylet, *(pid for pid, stat in every_process() if stat.parent == raylet)])
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)

    executor = RayExecutor(settings(), min_workers=1, max_workers=6, elastic_timeout=100)
    executor.start()
    try:
        results = executor.run(wait_for_fewer, callbacks=[stop])
    finally:
        del os.environ["HOROVOD_HEARTBEAT_TIMEOUT_SECONDS"]
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert stopped, heard
    assert results == [HEAD_CPUS] * HEAD_CPUS
