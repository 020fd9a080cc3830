"""Ray Tune: trials whose ranks are actors, one world for each trial.

The name and the arguments are those that ``ray.tune.integration.horovod`` had.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
from ray import tune

from horovod.bootstrap.place.launchers import OWN
from horovod.errors import ConfigError, LaunchError
from horovod.ray import checks, ray_logger
from horovod.ray.failures import check_picklable
from horovod.ray.runner import RayExecutor

__all__ = ["DistributedTrainableCreator", "report"]

_STATE = "state.pickle"
_REPORT, _PICKLED = "horovod.ray.tune.report", "state"  # of a message
_OF_A_TRIAL = r"`\w+` is meant to only be called inside a function that is executed by a Tuner"


def DistributedTrainableCreator(
    func: Callable[..., Any],
    use_gpu: bool = False,
    num_hosts: int | None = None,
    num_workers: int = 1,
    num_cpus_per_worker: float = 1,
    timeout_s: float = 30,
    replicate_pem: bool = False,
) -> Callable[[dict[str, Any]], None]:
    """A trainable for ``tune.Tuner``: each trial calls ``func`` on several ranks.

    ``func(config)`` trains as on any cluster, from ``hvd.init()`` on, and calls :func:`report` on every rank.
    If it has an argument ``state``, that is what the trial goes on from, None in a new one. A rank that
    fails fails the trial; what Tune does then is set in ``tune.RunConfig``.

    Args:
        use_gpu: each rank takes a GPU.
        num_hosts: spread each trial over exactly so many nodes.
        num_workers: ranks of a trial; with ``num_hosts``: on each of its nodes.
        num_cpus_per_worker: CPUs of Ray that each rank takes.
        timeout_s: how many seconds actors may take to start, and ranks to find each other.
        replicate_pem: False: nothing is started by ssh, and no key of it is copied.

    Raises:
        ConfigError: a number is too small, or a key is to be copied.
        LaunchError: ``func`` cannot be pickled; says which part.
    """
    if replicate_pem:
        raise ConfigError("DistributedTrainableCreator: no ssh is used, so leave replicate_pem out.")
    for name, count in (("num_hosts", num_hosts), ("num_workers", num_workers)):
        if count is not None:
            checks.count(f"DistributedTrainableCreator: {name}", count)
    checks.share("DistributedTrainableCreator: num_cpus_per_worker", num_cpus_per_worker)
    if not num_cpus_per_worker and not use_gpu:
        raise ConfigError(
            "DistributedTrainableCreator: a rank needs a CPU or a GPU, so that a trial has room."
        )
    RayExecutor.create_settings(timeout_s=timeout_s)  # refuses what is no limit
    check_picklable("DistributedTrainableCreator", func)

    def trial(config: dict[str, Any]) -> None:
        kept = tune.get_checkpoint()
        state = None
        if kept is not None:
            with kept.as_directory() as folder:
                state = Path(folder, _STATE).read_bytes()
        executor = RayExecutor(
            RayExecutor.create_settings(timeout_s=timeout_s),
            num_workers=num_workers * (num_hosts or 1),
            cpus_per_worker=num_cpus_per_worker,
            use_gpu=use_gpu,
        )
        with executor:  # in the placement group of the trial
            executor.start()
            executor.run(_train, (func, config, state), callbacks=[_hand_on])

    each: dict[str, float] = {"CPU": num_cpus_per_worker, **({"GPU": 1} if use_gpu else {})}
    if num_hosts is None:
        places = tune.PlacementGroupFactory([{}, *[each] * num_workers], strategy="PACK")
    else:
        on_each = {name: count * num_workers for name, count in each.items()}
        places = tune.PlacementGroupFactory([{}, *[on_each] * num_hosts], strategy="STRICT_SPREAD")
    made: Callable[[dict[str, Any]], None] = tune.with_resources(trial, places)
    return made


def report(metrics: Mapping[str, Any], state: Any = None) -> None:
    """A step of the trial is done. All ranks call it; what rank 0 says counts. Returns on rank 0 when the
    trial has it.

    Args:
        metrics: for Tune.
        state: what the trial goes on from after a failure, or where a scheduler copies it. Any object that
            can be pickled.
    """
    if os.environ.get(OWN.rank) != "0":
        return
    ray_logger.log({_REPORT: dict(metrics), _PICKLED: None if state is None else cloudpickle.dumps(state)})
    ray_logger.await_taken()


def _train(func: Callable[..., Any], config: dict[str, Any], state: bytes | None) -> None:
    """Runs on each rank."""
    more = {}
    if "state" in inspect.signature(func).parameters:
        more["state"] = None if state is None else pickle.loads(state)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _OF_A_TRIAL)  # Ray would drop what is reported
            func(config, **more)
    except UserWarning as error:
        if not re.match(_OF_A_TRIAL, str(error)):
            raise
        raise LaunchError(
            "ray.tune.report and ray.tune.get_checkpoint are for the process of a trial, and this is one "
            "of its ranks. Call horovod.ray.tune.report(metrics, state), and let the function have an "
            "argument state."
        ) from error


def _hand_on(said: dict[str, Any]) -> None:
    """Runs in the trial, with what ranks say."""
    if _REPORT not in said:
        return
    if said[_PICKLED] is None:
        tune.report(said[_REPORT])
        return
    with tempfile.TemporaryDirectory(prefix="horovod-tune-") as folder:
        Path(folder, _STATE).write_bytes(said[_PICKLED])
        tune.report(said[_REPORT], checkpoint=tune.Checkpoint.from_directory(folder))
