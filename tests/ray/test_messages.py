"""What ranks say, on its way to callbacks."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import horovod.arrays as hvd
from horovod.bootstrap.place.proc import stat_of

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from tests.ray.helpers import await_free, release, settings, shared, summed
from tests.ray.session import HEAD_CPUS, OTHER_CPUS, WHOLE, in_ray

from horovod.ray import RayExecutor, ray_logger
from horovod.ray.failures import ActorFailed
from horovod.ray.messages import Listening

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


@in_ray
def test_the_queue_is_on_the_node_of_the_driver() -> None:
    """On any other it would be lost with that node, and an elastic job with it."""

    def node_of(queue: Any) -> str:
        asked = queue.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        return str(ray.get(asked))

    mine = ray.get_runtime_context().get_node_id()
    for _ in range(8 if WHOLE else 3):  # Ray by itself takes any node
        heard = Listening([print])
        found = node_of(heard.queue)
        heard.queue.shutdown(force=True)
        assert found == mine


@in_ray
def test_a_result_that_cannot_be_read_here_is_said() -> None:
    def strange() -> object:
        import sys
        import types

        module = types.ModuleType("only_there")
        exec("class Strange:\n    pass", module.__dict__)
        module.Strange.__module__ = module.__name__
        sys.modules[module.__name__] = module
        return module.Strange()

    with pytest.raises(
        ActorFailed, match=r"rank \d .* has a result that cannot be read here\. Can this process"
    ):
        shared().run(strange)
    assert shared().run(summed, [1]) == [3.0] * 2


@whole
@in_ray
def test_an_actor_that_died_before_a_call_with_callbacks_is_named() -> None:
    release()
    with RayExecutor(settings(), num_workers=2) as executor:
        executor.start()
        os.kill(executor.run(os.getpid)[1], signal.SIGKILL)
        with pytest.raises(ActorFailed, match=r"rank 1 on node \w+ .* has died"):
            executor.run(summed, [1], callbacks=[print])


@whole
@in_ray
def test_ranks_that_speak_faster_than_callbacks_hear_hide_no_failure() -> None:
    def speak() -> None:
        hvd.init()
        hvd.allreduce(np.ones(3))
        while True:
            ray_logger.log({"rank": hvd.rank(), "pid": os.getpid()})
            if hvd.rank() == 1:
                time.sleep(1)
                os.kill(os.getpid(), signal.SIGKILL)

    heard: set[int] = set()

    def hear(said: dict[str, int]) -> None:
        heard.add(said["rank"])
        if said["rank"] == 0 and stat_of(said["pid"]) is not None:
            time.sleep(0.01)  # slower than they speak, as long as they do

    release()
    with RayExecutor(settings(), num_workers=2) as executor:
        executor.start()
        timer = threading.Timer(60, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(ActorFailed, match=r"rank 1 .* has died\. 1 rank that still ran was ended"):
            executor.run(speak, callbacks=[hear])
        timer.cancel()
    assert heard == {0, 1}
    await_free(HEAD_CPUS + OTHER_CPUS)
