from __future__ import annotations

from collections.abc import Mapping

from horovod.launch.environment import compute_threads, job_environment, slot_environment
from horovod.launch.placement.hosts import Slot


def worker(
    inherited: Mapping[str, str], options: Mapping[str, str], *, same_host: bool = True
) -> dict[str, str]:
    return job_environment(
        inherited,
        options,
        store=[("127.0.0.1", 4711)],
        secret_key=b"\x01\xff",
        job_id="job",
        same_host=same_host,
    )


def test_job_variables_win_over_options_and_inherited_ones() -> None:
    inherited = {
        "HOROVOD_SECRET_KEY": "old",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
        "HOROVOD_STORE": "@old",
        "HOME": "/h",
    }
    assert worker(inherited, {"HOROVOD_CONTROLLER": "mpi"}) == {
        "HOME": "/h",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_SECRET_KEY": "01ff",
        "HOROVOD_JOB_ID": "job",
        "PYTHONUNBUFFERED": "1",
    }


def test_option_wins_over_inherited_variable_which_survives_otherwise() -> None:
    inherited = {"HOROVOD_CYCLE_TIME": "3", "HOROVOD_CACHE_CAPACITY": "9"}
    found = worker(inherited, {"HOROVOD_CYCLE_TIME": "20.0"})
    assert (found["HOROVOD_CYCLE_TIME"], found["HOROVOD_CACHE_CAPACITY"]) == ("20.0", "9")


def test_leftovers_of_shells_and_other_jobs_are_dropped() -> None:
    inherited = {
        "BASH_FUNC_module%%": "() { :; }",
        "OLDPWD": "/",
        "_HOROVOD_SECRET_KEY": "secret",
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_ELASTIC_TIMEOUT": "5",
    }
    kept = worker(inherited, {})
    assert [name for name in inherited if name in kept] == ["HOROVOD_ELASTIC_TIMEOUT"]


def test_visible_devices_reach_this_machine_only() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "1", "NVIDIA_CUDA_VISIBLE_DEVICES": "1"}
    assert inherited.items() <= worker(inherited, {}).items()
    assert not inherited.keys() & worker(inherited, {}, same_host=False).keys()


def test_slot_is_told_in_seven_variables() -> None:
    assert slot_environment(Slot("h", 5, 8, 1, 4, 2, 3)) == {
        "HOROVOD_HOSTNAME": "h",
        "HOROVOD_RANK": "5",
        "HOROVOD_SIZE": "8",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "4",
        "HOROVOD_CROSS_RANK": "2",
        "HOROVOD_CROSS_SIZE": "3",
    }


def test_cores_are_shared_out_unless_the_user_decided() -> None:
    assert compute_threads({}, 4, 16) == 4
    assert compute_threads({}, 3, 16) == 5
    assert compute_threads({}, 8, 2) == 1
    assert compute_threads({}, 1, 16) is None
    assert compute_threads({"OMP_NUM_THREADS": "7"}, 4, 16) is None
