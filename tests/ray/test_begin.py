"""Workers of an elastic job that cannot begin, with stand-ins for actors and the cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from horovod.bootstrap.place.starter import parse
from horovod.errors import LaunchError

pytest.importorskip("ray", reason="Ray is not installed")

from ray.exceptions import RayActorError, RayTaskError

from horovod.launch.contracts.events import Event, Exited, Gone, Said
from horovod.launch.contracts.fleet import FleetWorker
from horovod.ray import fleet
from horovod.ray.elastic_actors import ElasticWorker
from horovod.ray.fleet import ActorFleet, Wanted, _Node


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock()
    monkeypatch.setattr(fleet, "ray", made)
    return made


@pytest.fixture
def made(cluster: Mock) -> Iterator[ActorFleet]:
    plan = Mock(call=[], environment={})
    made = ActorFleet(Mock(), plan, Mock(), names=Mock(), wanted=Wanted(1, 0, {}, None))
    made._nodes["node"] = _Node(probe=Mock(), node_id="ab" * 28, reached=True)
    made.start(FleetWorker(7, "node", {}, 0))
    yield made
    made.close()


def after_begin(made: ActorFleet, cluster: Mock, error: Exception) -> list[Event]:
    """What follows when the worker answers this."""
    actor = cluster.remote.return_value.options.return_value.remote.return_value
    answer: Future[Any] = Future()
    answer.set_exception(error)
    actor.begin.remote.return_value.future.return_value.add_done_callback.call_args[0][0](answer)
    return [each for each in made.events() if isinstance(each, Said | Exited | Gone)]


def test_a_worker_that_cannot_begin_has_failed_and_says_why(made: ActorFleet, cluster: Mock) -> None:
    error = RayTaskError("begin", "a long traceback", ValueError("embedded null byte")).as_instanceof_cause()
    said, exited, gone = after_begin(made, cluster, error)
    assert isinstance(said, Said)
    what = parse(said.line).text
    assert what.startswith("could not begin in actor ")
    assert what.endswith(": ValueError: embedded null byte")
    assert exited == Exited(7, 1)
    assert gone == Gone(7)
    assert cluster.kill.called


def test_of_an_actor_that_has_died_its_call_says_more(made: ActorFleet, cluster: Mock) -> None:
    assert after_begin(made, cluster, RayActorError()) == []
    assert 7 in made._workers


def test_a_worker_that_could_not_begin_makes_no_call() -> None:
    with pytest.raises(LaunchError, match="could not begin makes no call"):
        ElasticWorker().run(b"")


LEAVING = """
import sys
from horovod.launch.calls.functions import pack_call
from horovod.ray.elastic_actors import ElasticWorker
from horovod.runtime.ending import note_endings

worker = ElasticWorker()
worker.begin({}, None)
note_endings(print, print)  # as init() does
reply = worker.run(b"".join(pack_call(lambda: sys.exit(4), (), {})))
assert "raised SystemExit: 4" in reply.word, reply
assert b"SystemExit" in reply.data and b"_Exit" not in reply.data, reply
"""


def test_a_worker_that_calls_exit_is_said_to_have_raised_system_exit() -> None:
    """In a process of its own, whose hooks stay."""
    subprocess.run([sys.executable, "-c", LEAVING], check=True, timeout=60)
