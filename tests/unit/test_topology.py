from __future__ import annotations

import socket

import pytest

from horovod.bootstrap.launchers import FAMILIES, meeting_point
from horovod.bootstrap.topology import Place, Topology, agree, alone, read_place
from horovod.errors import ConfigError

STORE = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1234"}
RANK_1_OF_3 = {
    **STORE,
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "3",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "b",
}


def test_no_launcher_is_a_world_of_one() -> None:
    place = read_place({})
    assert place == Place("", 0, 1, (0, 1), (0, 1), socket.gethostname())
    assert alone(place) == Topology(0, 1, 0, 1, 0, 1, True, (socket.gethostname(),))


def test_horovodrun_says_everything() -> None:
    assert read_place(RANK_1_OF_3) == Place("horovodrun", 1, 3, (0, 2), (1, 2), "b", (("10.0.0.1", 1234),))


def test_one_process_of_horovodrun_needs_no_store() -> None:
    place = read_place({**STORE, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"})
    assert (place.size, place.store, place.local, place.cross) == (1, (), (0, 1), (0, 1))


@pytest.mark.parametrize(
    ("changed", "variable"),
    [
        ({"HOROVOD_RANK": "one"}, "HOROVOD_RANK"),
        ({"HOROVOD_RANK": "3"}, "HOROVOD_RANK"),
        ({"HOROVOD_RANK": "-1"}, "HOROVOD_RANK"),
        ({"HOROVOD_RANK": ""}, "HOROVOD_RANK"),
        ({"HOROVOD_SIZE": ""}, "HOROVOD_SIZE"),
        ({"HOROVOD_SIZE": "0"}, "HOROVOD_SIZE"),
        ({"HOROVOD_SIZE": "3.0"}, "HOROVOD_SIZE"),
        ({"HOROVOD_LOCAL_RANK": "2"}, "HOROVOD_LOCAL_RANK"),
        ({"HOROVOD_CROSS_SIZE": "x"}, "HOROVOD_CROSS_SIZE"),
        ({"HOROVOD_RANK": "", "HOROVOD_SIZE": ""}, "HOROVOD_RANK"),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": ""}, "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        ({"HOROVOD_GLOO_RENDEZVOUS_PORT": ""}, "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        ({"HOROVOD_GLOO_RENDEZVOUS_PORT": "http"}, "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        ({"HOROVOD_GLOO_RENDEZVOUS_PORT": "70000"}, "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        (dict.fromkeys(STORE, ""), "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    ],
)
def test_contradiction_is_an_error_that_names_the_variable(changed: dict[str, str], variable: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        read_place({**RANK_1_OF_3, **changed})
    assert caught.value.variable == variable


OTHERS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    "MVAPICH": {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"},
    "jsrun": {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"},
    "Flux": {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"},
    "srun": {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
    "MPICH": {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    "PMI": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "torch.distributed": {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
}


def test_every_launcher_has_an_example() -> None:
    assert len(OTHERS) == len(FAMILIES)


@pytest.mark.parametrize("name", OTHERS)
def test_other_launcher_that_says_too_little_is_never_a_silent_world_of_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"rank 1 of 2 of {name}"):
        read_place(OTHERS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_other_launcher_can_be_joined_through_a_store(name: str) -> None:
    place = read_place({**OTHERS[name], **STORE})
    assert (place.rank, place.size, place.store) == (1, 2, (("10.0.0.1", 1234),))


@pytest.mark.parametrize("name", OTHERS)
def test_half_a_pair_of_another_launcher_is_an_error(name: str) -> None:
    environ = dict(OTHERS[name])
    size = next(key for key in environ if key.endswith(("SIZE", "NUM_TASKS")))
    del environ[size]
    with pytest.raises(ConfigError, match="is set, but"):
        read_place(environ)


MORE = {
    "torchrun": {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0"},
    "Open MPI": {"PMIX_NAMESPACE": "prterun-n1-7@1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "srun": {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]"},
}
HOSTS = {"torchrun": "n1", "Open MPI": "127.0.0.1", "srun": "n1"}


@pytest.mark.parametrize("name", MORE)
def test_ranks_of_another_launcher_find_the_same_meeting_point(name: str) -> None:
    environ = {**OTHERS[name], **MORE[name]}
    rank_variable = next(key for key, value in OTHERS[name].items() if value == "1")
    first, second = read_place({**environ, rank_variable: "0"}), read_place(environ)
    assert first.store == second.store != ()
    assert first.job == second.job != ""
    assert (first.serves, second.serves) == (True, False)
    ((host, port),) = first.store
    assert host == HOSTS[name]
    assert 12000 <= port < 32000
    changed = next(iter(MORE[name]))
    assert read_place({**environ, changed: "other"}).job != first.job


def test_explicit_address_wins_over_the_derived_one() -> None:
    place = read_place({**OTHERS["torchrun"], **MORE["torchrun"], **STORE})
    assert place.store == (("10.0.0.1", 1234),)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[08-11,20]-ib,login", "gpu08-ib"),
        ("n1", "n1"),
        ("a,b", "a"),
        ("n[3]", "n3"),
        ("n[3,5-9]", "n3"),
        ("", ""),
    ],
)
def test_first_host_of_a_list_of_slurm(nodes: str, first: str) -> None:
    environ = {**OTHERS["srun"], "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": nodes}
    meeting = meeting_point(next(family for family in FAMILIES if family.name == "srun"), environ, 2)
    assert (meeting.host if meeting else "") == first


def test_own_variables_win_over_those_of_another_launcher() -> None:
    assert read_place({**OTHERS["Open MPI"], **RANK_1_OF_3}).launcher == "horovodrun"


@pytest.mark.parametrize(
    "environ",
    [
        {
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "4",
            "SLURM_PROCID": "0",
            "SLURM_NNODES": "2",
        },  # a batch script
        {
            "SLURM_STEP_ID": "4294967290",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "4",
        },
        {"RANK": "3", "WORLD_SIZE": "8"},  # names that anybody may use
        {"PMIX_NAMESPACE": "x"},
    ],
)
def test_what_is_no_task_of_a_launcher_is_a_world_of_one(environ: dict[str, str]) -> None:
    assert read_place(environ).size == 1


def place(rank: int, host: str, local: tuple[int, int] | None, size: int = 3) -> Place:
    return Place("horovodrun", rank, size, local, None, host)


def test_what_no_launcher_said_is_counted_by_host() -> None:
    places = [place(0, "a", None), place(1, "b", None), place(2, "b", None)]
    assert agree(0, places) == Topology(0, 3, 0, 1, 0, 2, False, ("a", "b", "b"))
    assert agree(1, places) == Topology(1, 3, 0, 2, 1, 2, False, ("a", "b", "b"))
    assert agree(2, places) == Topology(2, 3, 1, 2, 0, 1, False, ("a", "b", "b"))


def test_what_the_launcher_said_is_what_users_see() -> None:
    places = [
        Place("horovodrun", r, 2, (0, 1), (r, 2), name) for r, name in enumerate(("localhost", "127.0.0.1"))
    ]
    assert agree(1, places) == Topology(1, 2, 0, 1, 1, 2, True, ("localhost", "127.0.0.1"))


def test_different_sizes_are_an_error_that_names_both_ranks() -> None:
    with pytest.raises(ConfigError, match="rank 1 on host b was told 4, rank 0 on host a was told 2"):
        agree(0, [place(0, "a", None, 2), place(1, "b", None, 4)])


def test_two_equal_local_ranks_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError, match="Ranks 0 and 1 were both told to be local rank 0 of host a"):
        agree(0, [place(0, "a", (0, 1), 2), place(1, "a", (0, 1), 2)])
