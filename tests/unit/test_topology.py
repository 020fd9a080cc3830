from __future__ import annotations

import socket

import pytest

from horovod.bootstrap.place.launchers import LAUNCHERS, meeting_point
from horovod.bootstrap.place.store_address import read_store, store_environment
from horovod.bootstrap.place.topology import PORT_OF_KEY, RankPlace, Topology, agree, alone, read_place
from horovod.bootstrap.trust.unix import NAME_OF_KEY
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
    assert place == RankPlace("", 0, 1, (0, 1), (0, 1), socket.gethostname())
    assert alone(place) == Topology(0, 1, 0, 1, 0, 1, True, (socket.gethostname(),))


def test_horovodrun_says_everything() -> None:
    assert read_place(RANK_1_OF_3) == RankPlace(
        "horovodrun", 1, 3, (0, 2), (1, 2), "b", (("10.0.0.1", 1234),)
    )


SOCKET = {
    "HOROVOD_STORE": "@farandole-1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
}


@pytest.mark.parametrize("places", [(("@farandole-1", 0),), (("10.0.0.1", 1234), ("fd00::1", 1234))])
def test_variables_say_where_the_store_is(places: tuple[tuple[str, int], ...]) -> None:
    assert read_store(store_environment(places)) == places
    assert set(SOCKET) - {"HOROVOD_STORE"} <= set(store_environment(places)), "scripts may read these"


def test_the_socket_of_an_enclosing_job_does_not_count() -> None:
    assert read_place({**RANK_1_OF_3, **SOCKET}).store == (("@farandole-1", 0),)
    assert read_place({**SOCKET, **RANK_1_OF_3}).store == (("10.0.0.1", 1234),)
    named = {name: value for name, value in SOCKET.items() if name == "HOROVOD_STORE"}
    assert read_store(named) == (("@farandole-1", 0),)
    for wrong in ("farandole-1", "@", "@a/b", "@" + "a" * 101):
        with pytest.raises(ConfigError, match="is not the name of a socket"):
            read_store({**SOCKET, "HOROVOD_STORE": wrong})


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
    assert len(OTHERS) + 1 == len(LAUNCHERS)  # PMIx alone does not tell the size: see below


@pytest.mark.parametrize("name", OTHERS)
def test_other_launcher_that_says_too_little_is_never_a_silent_world_of_one(name: str) -> None:
    environ = {key: value for key, value in OTHERS[name].items() if not key.startswith("MASTER")}
    if name == "torch.distributed":  # without a place to meet these are names that anybody may use
        assert read_place(environ).size == 1
        return
    with pytest.raises(ConfigError, match=f"rank 1 of 2 of {name}"):
        read_place(environ)


@pytest.mark.parametrize("name", OTHERS)
def test_other_launcher_can_be_joined_through_a_store(name: str) -> None:
    place = read_place({**OTHERS[name], **STORE})
    assert (place.rank, place.size, place.store) == (1, 2, (("10.0.0.1", 1234),))


@pytest.mark.parametrize("name", OTHERS)
def test_half_a_pair_of_another_launcher_is_an_error(name: str) -> None:
    environ = dict(OTHERS[name])
    size = next(key for key in environ if key.endswith(("SIZE", "NUM_TASKS")))
    del environ[size]
    if name == "torch.distributed":
        assert read_place(environ).size == 1
        return
    with pytest.raises(ConfigError, match="is set, but"):
        read_place(environ)


MORE = {
    "torchrun": {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0"},
    "Open MPI": {
        "PMIX_NAMESPACE": "prterun-n1-7@1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "srun": {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]"},
}
HOSTS = {"torchrun": "n1", "Open MPI": NAME_OF_KEY, "srun": "n1"}


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
    assert port == PORT_OF_KEY
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
    meeting = meeting_point(next(family for family in LAUNCHERS if family.name == "srun"), environ, 2)
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


def place(rank: int, host: str, local: tuple[int, int] | None, size: int = 3) -> RankPlace:
    return RankPlace("horovodrun", rank, size, local, None, host)


def test_what_no_launcher_said_is_counted_by_host() -> None:
    places = [place(0, "a", None), place(1, "b", None), place(2, "b", None)]
    assert agree(0, places) == Topology(0, 3, 0, 1, 0, 2, False, ("a", "b", "b"))
    assert agree(1, places) == Topology(1, 3, 0, 2, 1, 2, False, ("a", "b", "b"))
    assert agree(2, places) == Topology(2, 3, 1, 2, 0, 1, False, ("a", "b", "b"))


def test_what_the_launcher_said_is_what_users_see() -> None:
    places = [
        RankPlace("horovodrun", r, 2, (0, 1), (r, 2), name)
        for r, name in enumerate(("localhost", "127.0.0.1"))
    ]
    assert agree(1, places) == Topology(1, 2, 0, 1, 1, 2, True, ("localhost", "127.0.0.1"))


def test_different_sizes_are_an_error_that_names_both_ranks() -> None:
    with pytest.raises(ConfigError, match="rank 1 on host b was told 4, rank 0 on host a was told 2"):
        agree(0, [place(0, "a", None, 2), place(1, "b", None, 4)])


def test_two_equal_local_ranks_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError, match="Ranks 0 and 1 were both told to be local rank 0 of host a"):
        agree(0, [place(0, "a", (0, 1), 2), place(1, "a", (0, 1), 2)])


PMIX = {"PMIX_NAMESPACE": "prterun-n1-7@1", "PMIX_RANK": "1", "PMIX_SERVER_URI2": "x;tcp4://127.0.0.1:1"}


def test_a_launcher_of_which_only_pmix_knows_the_size() -> None:
    place = read_place(PMIX, ask_size=lambda _: 4)
    assert (place.rank, place.size, place.channels) == (1, 4, ("pmix", "file"))
    with pytest.raises(ConfigError, match="PMIX_RANK=1 is not one of 1"):
        read_place(PMIX, ask_size=lambda _: 1)


def test_a_size_that_pmix_does_not_tell_is_an_error_not_a_world_of_one() -> None:
    with pytest.raises(ConfigError, match=r"PMIX_RANK=1 says that a launcher .* Set HOROVOD_RANK"):
        read_place({**PMIX, "PATH": "", "PMIX_PREFIX": "/nowhere"})


@pytest.mark.parametrize(
    ("environ", "ways"),
    [
        ({**OTHERS["Open MPI"], **PMIX}, ("pmix", "file")),
        ({**OTHERS["Open MPI"], "PMIX_NAMESPACE": "x"}, ("file",)),
        ({**OTHERS["MPICH"], "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0", "PMI_FD": "9"}, ("pmi",)),
        ({**OTHERS["Flux"], "PMI_FD": "9", "FLUX_JOB_ID": "f1"}, ("pmi", "file")),
        ({**OTHERS["PMI"], "PMI_FD": "9"}, ("pmi",)),
    ],
)
def test_how_rank_0_tells_where_it_is(environ: dict[str, str], ways: tuple[str, ...]) -> None:
    place = read_place(environ)
    assert (place.store, place.serves, place.channels) == ((), False, ways)
    assert read_place({**environ, **STORE}).channels == ()


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        # horovodrun in a batch script, or in a step of one
        ({**RANK_1_OF_3, **OTHERS["srun"], "SLURM_PROCID": "0"}, "horovodrun"),
        ({**OTHERS["torchrun"], **OTHERS["srun"], "SLURM_PROCID": "0", **STORE}, "torchrun"),
        # mpirun starts its daemons with srun, and the ranks inherit their variables
        ({**OTHERS["Open MPI"], **OTHERS["srun"], "SLURM_PROCID": "0", **STORE}, "Open MPI's mpirun"),
        ({**OTHERS["MPICH"], **OTHERS["srun"], "SLURM_PROCID": "0", **STORE}, "MPICH's or Intel's mpirun"),
        # srun --mpi=pmi2 and --mpi=pmix speak for themselves
        ({**OTHERS["srun"], **OTHERS["PMI"], **STORE}, "srun"),
        ({**OTHERS["srun"], **PMIX, **STORE}, "srun"),
        # a batch script with the variables of torch.distributed
        (
            {**OTHERS["torch.distributed"], "SLURM_PROCID": "0", "SLURM_NTASKS": "4", **STORE},
            "torch.distributed",
        ),
        ({**OTHERS["torch.distributed"], **OTHERS["srun"], **STORE}, "srun"),
    ],
)
def test_of_several_launchers_the_one_that_started_this_process_counts(
    environ: dict[str, str], launcher: str
) -> None:
    place = read_place(environ)
    assert (place.launcher, place.rank) == (launcher, 1)


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({**RANK_1_OF_3, "HOROVOD_LOCAL_SIZE": ""}, "HOROVOD_LOCAL_SIZE"),
        ({**RANK_1_OF_3, "HOROVOD_CROSS_RANK": ""}, "HOROVOD_CROSS_RANK"),
        ({**OTHERS["Open MPI"], **STORE, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK"),
        ({**OTHERS["torchrun"], **STORE, "LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE"),
        ({**OTHERS["MPICH"], "PMI_RANK": ""}, "PMI_RANK"),
    ],
)
def test_half_a_pair_is_an_error_that_names_both(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"is set, but {missing} is not: set both or none") as caught:
        read_place(environ)
    assert caught.value.variable == missing


def other(rank: int, host: str, local: tuple[int, int] | None, launcher: str = "torchrun") -> RankPlace:
    return RankPlace(launcher, rank, 4, local, None, host)


def test_local_ranks_of_mpirun_are_counted_in_the_order_of_ranks() -> None:
    # Open MPI 5 on a host with fewer cores than ranks gives them in another order: 0, 2, 1, 3.
    environ = {
        **OTHERS["Open MPI"],
        **STORE,
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    assert read_place(environ).local is None
    places = [other(rank, host, None, "mpirun") for rank, host in enumerate("abab")]
    assert [agree(r, places).local_rank for r in range(4)] == [0, 0, 1, 1]
    assert [agree(r, places).cross_rank for r in range(4)] == [0, 1, 0, 1]


def test_local_ranks_of_torchrun_are_kept_if_they_fit_the_hosts(caplog: pytest.LogCaptureFixture) -> None:
    kept = [other(0, "a", (1, 2)), other(1, "a", (0, 2)), other(2, "b", (0, 2)), other(3, "b", (1, 2))]
    assert [agree(r, kept).local_rank for r in range(4)] == [1, 0, 0, 1]
    assert caplog.text == ""
    for wrong in ((0, 2), (1, 4)):
        places = [*kept[:3], other(3, "b", wrong)]
        assert [agree(r, places).local_rank for r in range(4)] == [0, 1, 0, 1]
        assert [agree(r, places).local_size for r in range(4)] == [2, 2, 2, 2]
        assert "counted instead" in caplog.text


def test_machines_with_one_name_are_different_hosts() -> None:
    places = [other(rank, "localhost", None) for rank in range(4)]
    assert [agree(r, places, ["m1", "m1", "m2", "m2"]).local_rank for r in range(4)] == [0, 1, 0, 1]
    assert [agree(r, places, ["m1", "m1", "m2", "m2"]).cross_rank for r in range(4)] == [0, 0, 1, 1]


def test_several_addresses_of_the_store() -> None:
    place = read_place({**RANK_1_OF_3, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1,[fd00::1]"})
    assert place.store == (("10.0.0.1", 1234), ("fd00::1", 1234))
    with pytest.raises(ConfigError, match=r"HOROVOD_GLOO_RENDEZVOUS_ADDR=\[fd00::1.* no host"):
        read_place({**RANK_1_OF_3, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "[fd00::1"})
