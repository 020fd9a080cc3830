"""Arguments that make no sense are refused where they are given."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from horovod.errors import ConfigError, LaunchError

pytest.importorskip("ray", reason="Ray is not installed")

from ray.exceptions import ActorDiedError
from tests.ray.helpers import await_end, release, settings, shared, summed
from tests.ray.session import WHOLE, in_ray

from horovod.ray import RayExecutor, ray_logger
from horovod.ray.checks import texts
from horovod.ray.failures import ActorFailed
from horovod.ray.train import HorovodConfig
from horovod.ray.utils import nics_to_env_var

whole = pytest.mark.skipif(not WHOLE, reason="takes long: the full matrix runs it")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number and at least 1, not 0"),
        ({"num_workers": "2"}, "num_workers must be a whole number and at least 1, not '2'"),
        ({"num_workers": 1.5}, "num_workers must be a whole number"),
        ({"num_workers": True}, "num_workers must be a whole number"),
        ({"num_hosts": -1}, "num_hosts must be a whole number"),
        ({"num_hosts": 1, "num_workers_per_host": 0}, "num_workers_per_host must be a whole number"),
        ({"num_workers": 1, "num_hosts": 1}, "exclude each other"),
        ({"num_workers": 1, "cpus_per_worker": float("nan")}, "cpus_per_worker must be a whole number, or a"),
        ({"num_workers": 1, "cpus_per_worker": "1"}, "cpus_per_worker must be"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker must be"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 1.5}, "gpus_per_worker must be"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "gpus_per_worker must be more than 0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "means something with use_gpu=True only"),
        ({"min_workers": "2"}, "min_workers must be a whole number"),
        ({"min_workers": 1.5}, "min_workers must be a whole number"),
        ({"min_workers": 0}, "min_workers must be a whole number"),
        ({"min_workers": 2, "max_workers": 1}, "max_workers=1 is less than min_workers=2"),
        ({"min_workers": 1, "reset_limit": -1}, "reset_limit must be a whole number and at least 0"),
        ({"min_workers": 1, "elastic_timeout": "a"}, "elastic_timeout must be a number of seconds"),
        ({"min_workers": 1, "cooldown_range": 3}, "cooldown_range is two numbers of seconds"),
        ({"min_workers": 1, "cooldown_range": (5,)}, "cooldown_range is two numbers of seconds"),
        ({"min_workers": 1, "cooldown_range": (5, 1)}, r"cooldown_range\[1\] must be .* at least 5, not 1"),
    ],
)
def test_numbers_of_an_executor(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RayExecutor(settings(), **arguments)


@pytest.mark.parametrize("given", [0, -1, "a", None, float("nan")])
def test_limits_of_settings(given: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s must be a number of seconds"):
        RayExecutor.create_settings(timeout_s=given)
    with pytest.raises(ConfigError, match="placement_group_timeout_s must be"):
        RayExecutor.create_settings(placement_group_timeout_s=given)
    with pytest.raises(ConfigError, match=r"what RayExecutor.create_settings\(\) returns, not None"):
        RayExecutor(None, num_workers=1)


@pytest.mark.parametrize("given", [float("inf"), 1e18, 2**63, 10**400], ids=["inf", "float", "int", "huge"])
def test_limits_that_nobody_can_count(given: float) -> None:
    with pytest.raises(ConfigError, match=r"^timeout_s must be at most 2,000,000 seconds, not "):
        RayExecutor.create_settings(timeout_s=given)
    with pytest.raises(
        ConfigError, match=r"^placement_group_timeout_s must be at most 1,000,000,000 seconds, not "
    ):
        RayExecutor.create_settings(placement_group_timeout_s=given)
    with pytest.raises(ConfigError, match="elastic_timeout must be at most"):
        RayExecutor(settings(), min_workers=1, elastic_timeout=given)
    assert RayExecutor.create_settings(timeout_s=2_000_000).timeout_s == 2_000_000


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"": "1"}, "'' cannot be set as an environment variable: its name is empty"),
        ({"A=B": "1"}, "'A=B' cannot be set .*: its name has a '=' in it"),
        ({"A\0": "1"}, r"'A.x00' cannot be set .*: its name has a NUL character in it"),
        ({"A": "x\0y"}, "'A' cannot be set .*: its value has a NUL character in it"),
        ({"A": "\ud800"}, "'A' cannot be set .*: its value cannot be encoded as UTF-8"),
        ({"A": None}, "have a name and a value, not 'A'=None"),
    ],
)
@pytest.mark.parametrize("workers", [{"num_workers": 1}, {"min_workers": 1}], ids=["static", "elastic"])
def test_variables_that_no_process_can_have(
    workers: dict[str, int], variables: dict[str, Any], said: str
) -> None:
    """They are refused before anything is asked of Ray."""
    with pytest.raises(ConfigError, match=said):
        RayExecutor(settings(), **workers).adapter.start(extra_env_vars={"FIRST": 1, **variables})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        HorovodConfig(env_vars=variables)


def test_variables_become_texts() -> None:
    assert texts({"A": 1, "b.c": "=ä\udcff", "D": ""}) == {"A": "1", "b.c": "=ä\udcff", "D": ""}
    assert texts(None) == {}


def test_one_interface_is_not_taken_for_its_letters() -> None:
    assert nics_to_env_var("eth0")["NCCL_SOCKET_IFNAME"] == "eth0"


@in_ray
def test_what_cannot_be_called() -> None:
    executor = shared()
    wrong: Any = "train"
    for call in (executor.run, executor.execute, executor.execute_single, executor.run_remote):
        with pytest.raises(ConfigError, match="calls a function on every rank, and 'train' is none"):
            call(wrong)
    for args in (3, "ab"):
        with pytest.raises(ConfigError, match="args is a list of arguments"):
            executor.run(summed, args=args)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="kwargs is a dictionary"):
        executor.run(summed, kwargs=[1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="callbacks is a list of functions"):
        executor.run(summed, [1], callbacks=print)  # type: ignore[arg-type]
    other = RayExecutor(settings(), num_workers=1)
    with pytest.raises(ConfigError, match="have a name and a value, not 'A'=None"):
        other.start(extra_env_vars={"A": None})
    with pytest.raises(ConfigError, match="calls a function"):
        other.start(executable_cls=wrong)
    assert executor.run(summed, [1]) == [3.0] * 2


class Strange(Exception):
    """It cannot be made again from its arguments."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"strange {one} {other}")


@in_ray
def test_what_cannot_come_back_is_said() -> None:
    def raises() -> None:
        raise Strange(1, 2)

    with pytest.raises(ActorFailed, match=r"rank \d .*, has a result that cannot be pickled: TypeError"):
        shared().run(threading.Lock)
    with pytest.raises(
        ActorFailed, match=r"(?s)rank \d .*<genexpr> returned a generator, which has run nothing"
    ):
        shared().run(lambda: (each for each in [raises]))
    with pytest.raises(ActorFailed, match=r"has failed, and its error cannot be read here(.|\n)*strange 1 2"):
        shared().run(raises)
    assert shared().run(summed, [1]) == [3.0] * 2


@in_ray
def test_a_function_whose_own_actor_has_died_has_not_died_itself() -> None:
    def raises() -> None:
        raise ActorDiedError  # that of an actor of its own

    with pytest.raises(ActorFailed, match=r"rank \d .*, has raised ActorDiedError") as raised:
        shared().run(raises)
    assert not raised.value.ended
    assert shared().run(summed, [1]) == [3.0] * 2


@whole
@in_ray
@pytest.mark.parametrize("phase", ["idle", "constructor", "init", "result"])
def test_an_actor_is_killed_in_any_phase(phase: str) -> None:
    class Dying:
        def __init__(self) -> None:
            if phase == "constructor" and os.environ["HOROVOD_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

    def die(_: Any) -> None:
        if phase == "init" and os.environ["HOROVOD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        summed(1)
        if phase == "result" and os.environ["HOROVOD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    release()
    with RayExecutor(settings(), num_workers=2) as executor:
        if phase == "constructor":
            with pytest.raises(ActorFailed, match=r"rank 1 .* has died"):
                executor.start(Dying)
            return
        executor.start(Dying)
        pids = executor.run(os.getpid)
        if phase == "idle":
            os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ActorFailed, match=r"rank 1 .* has died"):
            executor.execute(die)
    await_end(pids)


@whole
@in_ray
def test_the_queue_of_the_callbacks_dies() -> None:
    import ray

    def talk() -> None:
        ray_logger.log({"queue": ray_logger._state.queue.actor})
        ray_logger.await_taken()
        ray_logger._state.queue.get(timeout=300)  # there is nothing any more

    with RayExecutor(settings(), num_workers=1) as executor:
        executor.start()
        with pytest.raises(LaunchError, match="the actor of their queue has died"):
            executor.run(talk, callbacks=[lambda said: ray.kill(said["queue"])])
