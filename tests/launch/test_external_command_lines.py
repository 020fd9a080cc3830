"""Which launcher is chosen, and the command lines of those that are not ours."""

from __future__ import annotations

import dataclasses
import itertools
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from horovod.errors import ConfigError, LaunchError
from horovod.launch.contracts.registry import LAUNCHERS
from horovod.launch.external.program import Order, dry_line, exported_names, make_order
from horovod.launch.launchers import jsrun, srun
from horovod.launch.launchers.choice import Available, choose_launcher
from horovod.launch.launchers.jsrun import rank_file
from horovod.launch.launchers.mpirun import Make, Mpi, mpirun_line, recognise
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import to_job
from horovod.launch.placement.hosts import HostSlots
from horovod.launch.placement.lsf import NodeShape

OPEN_MPI_4 = Mpi(Make.OPEN_MPI, 4, "/bin/mpirun")
OPEN_MPI_5 = Mpi(Make.OPEN_MPI, 5, "/bin/mpirun")
SPECTRUM = Mpi(Make.SPECTRUM, 10, "/bin/mpirun")
MPICH = Mpi(Make.MPICH, 4, "/bin/mpirun")
INTEL = Mpi(Make.INTEL, 2021, "/bin/mpirun")
COMMAND = ("python", "train.py", "a b")


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(
        program="/bin/launcher",
        command=COMMAND,
        processes=4,
        hosts=(HostSlots("a", 2), HostSlots("b", 2)),
        environment={"PATH": "/bin", "HOROVOD_JOB_ID": "job"},
        exported=("HOROVOD_JOB_ID", "PATH"),
        folder=tmp_path,
    )


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


# Choosing.


@pytest.mark.parametrize(("mpirun", "lsf", "has_jsrun"), list(itertools.product([True, False], repeat=3)))
def test_choice_follows_request_and_what_there_is(mpirun: bool, lsf: bool, has_jsrun: bool) -> None:
    def choose(request: str | None) -> str:
        programs = [name for name, there in (("mpirun", mpirun), ("jsrun", has_jsrun)) if there]
        available = Available(own=True, programs=frozenset(programs), lsf=lsf)
        try:
            return choose_launcher(request, available)
        except ValueError as error:
            return str(error).partition(" ")[0]

    assert choose("ssh") == "ssh"
    assert choose("mpirun") == ("mpirun" if mpirun else "--mpi")
    assert choose("jsrun") == ("jsrun" if lsf and has_jsrun else "--jsrun")
    assert choose("srun") == "--launcher"
    # MPI is nothing that ranks need: it is used if asked for.
    assert choose(None) == ("jsrun" if lsf and has_jsrun else "ssh")


def test_errors_of_choosing_have_texts_of_their_own() -> None:
    nothing = Available(own=True, programs=frozenset(), lsf=False)
    broken = nothing._replace(own=False)
    lsf = nothing._replace(lsf=True)
    cases = [("mpirun", nothing), ("srun", nothing), ("jsrun", nothing), ("jsrun", lsf), ("ssh", broken)]
    texts = set()
    for request, available in cases:
        with pytest.raises(ConfigError) as caught:
            choose_launcher(request, available)
        texts.add(str(caught.value))
    assert len(texts) == len(cases)
    with pytest.raises(ConfigError, match="_core is missing"):
        choose_launcher(None, broken)


# Recognising an MPI.

VERSIONS = {
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/": (Make.OPEN_MPI, 4),
    "mpirun (Open MPI) 5.0.11": (Make.OPEN_MPI, 5),
    "OpenRTE 2.0": (Make.OPEN_MPI, 2),
    "mpirun (IBM Spectrum MPI) 10.3.1.03rtm0\nbased on Open MPI": (Make.SPECTRUM, 10),
    "HYDRA build details:\n    Version:    4.1.1\n    Configure: MPICH": (Make.MPICH, 4),
    "HYDRA build details:\n    Version:    3.0b\n    Configure options: 'MVAPICH'": (Make.MPICH, 3),
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307": (Make.INTEL, 2021),
}


@pytest.mark.parametrize("text", VERSIONS)
def test_version_text_tells_the_make(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    program(folder, "mpirun", f"cat <<'END'\n{text}\nEND")
    found = recognise(str(folder / "mpirun"), {"PATH": os.environ["PATH"]})
    assert (found.make, found.major) == VERSIONS[text]
    assert found.program == str(folder / "mpirun")


def test_mpirun_is_asked_in_the_environment_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    mpirun = str(program(folder, "mpirun", "echo $WHICH 9.1"))
    assert recognise(mpirun, {"WHICH": "Open MPI"}).make is Make.OPEN_MPI
    with pytest.raises(LaunchError, match=r"belongs to an MPI that is not known here: 'Some MPI 9\.1'"):
        recognise(mpirun, {"WHICH": "Some MPI"})


@pytest.mark.parametrize("text", ["exit 3", ":", "echo broken; exit 1"])
def test_mpirun_that_does_not_work_is_told_with_what_to_do(text: str, tmp_path: Path) -> None:
    mpirun = str(program(tmp_path / "bin", "mpirun", text))
    with pytest.raises(LaunchError, match=r"--version ended with status .* use --gloo"):
        recognise(mpirun, {})


@pytest.mark.parametrize("name", [name for name, row in LAUNCHERS.items() if row.program])
def test_no_program_is_told(name: str, tmp_path: Path) -> None:
    job = dataclasses.replace(to_job(parse_command_line(["-np", "2", "true"])), launcher=name)
    with pytest.raises(ConfigError, match=f"{name}, which is not on PATH"):
        dry_line(job, {"PATH": str(tmp_path)})


# Command lines.


def test_open_mpi_line(order: Order) -> None:
    line = mpirun_line(OPEN_MPI_4, order)
    assert " ".join(line.words) == (
        "/bin/mpirun --allow-run-as-root -np 4 -H a:2,b:2 -bind-to none -map-by slot "
        "-x HOROVOD_JOB_ID -x PATH python train.py a b"
    )
    assert line.words[-3:] == COMMAND
    assert line.environment == order.environment


def test_open_mpi_5_has_spellings_of_its_own(order: Order) -> None:
    full = dataclasses.replace(order, ssh=("-p", "2222", "-i", "key"), interfaces=("eth0", "eth1"))
    assert " ".join(mpirun_line(OPEN_MPI_5, full).words) == (
        "/bin/mpirun --allow-run-as-root -np 4 --host a:2,b:2 --bind-to none --map-by slot "
        "--prtemca plm_ssh_args -p 2222 -i key --mca btl_tcp_if_include eth0,eth1 "
        "-x HOROVOD_JOB_ID -x PATH python train.py a b"
    )


def test_full_open_mpi_line_keeps_the_order(order: Order) -> None:
    full = dataclasses.replace(
        order,
        ssh=("-p", "2222"),
        interfaces=("eth0",),
        arguments=("--mca", "x", "y"),
        binding=("-bind-to", "socket"),
    )
    words = mpirun_line(OPEN_MPI_4, full).words
    assert " ".join(words[4:]) == (
        "-H a:2,b:2 -bind-to socket -mca plm_rsh_args -p 2222 -mca btl_tcp_if_include eth0 "
        "-x HOROVOD_JOB_ID -x PATH --mca x y python train.py a b"
    )
    assert "-p 2222" in words, "one word, for one setting"


@pytest.mark.parametrize(("hosts", "many"), [(63, False), (64, True)])
def test_many_hosts_are_started_without_a_tree(hosts: int, many: bool, order: Order) -> None:
    crowd = dataclasses.replace(order, hosts=tuple(HostSlots(f"h{n}", 1) for n in range(hosts)))
    words = " ".join(mpirun_line(OPEN_MPI_4, crowd).words)
    assert ("-mca plm_rsh_no_tree_spawn true -mca plm_rsh_num_concurrent 64" in words) == many
    words = " ".join(mpirun_line(OPEN_MPI_5, crowd).words)
    assert ("--prtemca plm_ssh_no_tree_spawn true --prtemca plm_ssh_num_concurrent 64" in words) == many


def test_spectrum_binds_to_sockets_and_knows_tcp(order: Order) -> None:
    words = " ".join(mpirun_line(SPECTRUM, dataclasses.replace(order, tcp=True)).words)
    assert "-H a:2,b:2 -bind-to socket -map-by socket -rank-by core -tcp -x" in words


def test_mpich_line(order: Order) -> None:
    given = dataclasses.replace(order, interfaces=("eth0",), ssh=("-p", "22"), arguments=("-v",))
    line = mpirun_line(MPICH, given)
    assert " ".join(line.words) == (
        "/bin/mpirun -np 4 -hosts a:2,b:2 -bind-to none -iface eth0 -genvlist HOROVOD_JOB_ID,PATH -v "
        "python train.py a b"
    )
    assert line.environment["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-p 22"


def test_intel_line_has_slots_per_host_or_a_file(order: Order) -> None:
    words = " ".join(mpirun_line(INTEL, order).words)
    assert "-np 4 -ppn 2 -hosts a,b -genvlist HOROVOD_JOB_ID,PATH python" in words
    uneven = dataclasses.replace(order, hosts=(HostSlots("a", 3), HostSlots("b", 1)))
    words = " ".join(mpirun_line(INTEL, uneven).words)
    assert f"-machinefile {order.folder}/machines" in words
    assert (order.folder / "machines").read_text() == "a:3\nb:1\n"


@pytest.mark.parametrize("mpi", [MPICH, INTEL])
def test_hydra_takes_one_interface(mpi: Mpi, order: Order) -> None:
    with pytest.raises(ConfigError, match=r"one network interface, not 2 \(eth0, eth1\)"):
        mpirun_line(mpi, dataclasses.replace(order, interfaces=("eth0", "eth1")))


@pytest.mark.parametrize("mpi", [OPEN_MPI_4, OPEN_MPI_5, SPECTRUM, MPICH, INTEL])
def test_no_line_holds_the_key(mpi: Mpi, order: Order) -> None:
    assert not any("secret" in word for word in mpirun_line(mpi, order).words)


def test_addresses_are_no_hosts_for_mpirun(order: Order) -> None:
    with pytest.raises(ConfigError, match="no IPv6 addresses"):
        mpirun_line(OPEN_MPI_4, dataclasses.replace(order, hosts=(HostSlots("::1", 4),)))


def test_hosts_of_the_line_are_not_overruled_by_a_default_host_file(order: Order) -> None:
    pod = {
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
    }
    given = dataclasses.replace(order, environment={**order.environment, **pod})
    assert "OMPI_MCA_orte_default_hostfile" not in mpirun_line(OPEN_MPI_4, given).environment
    assert "HYDRA_HOST_FILE" not in mpirun_line(MPICH, given).environment
    for_5 = mpirun_line(OPEN_MPI_5, given).environment
    assert for_5["PRTE_MCA_prte_keep_fqdn_hostnames"] == "true"
    assert for_5["PRTE_MCA_plm_ssh_args"] == "-o ConnectionAttempts=10"


def slurm_order(order: Order, folder: Path, **variables: str) -> Order:
    srun = program(folder / "bin", "srun", "echo 'MPI plugin types are...\n\tnone\n\tpmix'")
    environment = {"PATH": os.environ["PATH"], **variables}
    return dataclasses.replace(order, program=str(srun), environment=environment)


def test_srun_is_told_the_node_of_every_task(order: Order, tmp_path: Path) -> None:
    uneven = dataclasses.replace(
        slurm_order(order, tmp_path, SLURM_NTASKS="9", SLURM_JOB_ID="1"),
        hosts=(HostSlots("a", 3), HostSlots("b", 1)),
    )
    line = srun.start_line(uneven)
    assert " ".join(line.words[1:]) == (
        f"--ntasks 4 --kill-on-bad-exit=1 --nodes 2 --distribution=arbitrary --nodelist={order.folder}/nodes "
        "--cpu-bind=none python train.py a b"
    )
    assert (order.folder / "nodes").read_text() == "a\na\na\nb\n"
    assert "SLURM_NTASKS" not in line.environment
    assert line.environment["SLURM_JOB_ID"] == "1"


def test_srun_in_a_step_shares_its_cores_and_mpi_is_asked_for_if_it_is_used(
    order: Order, tmp_path: Path
) -> None:
    given = slurm_order(order, tmp_path, SLURM_STEP_ID="4294967290", HOROVOD_CPU_OPERATIONS="MPI")
    words = srun.start_line(dataclasses.replace(given, binding=("--cpu-bind=cores",))).words
    assert words[-6:-3] == ("--cpu-bind=cores", "--overlap", "--mpi=pmix")
    words = srun.start_line(dataclasses.replace(given, arguments=("--mpi=pmi2",))).words
    assert "--mpi=pmix" not in words


def test_srun_takes_names_only(order: Order, tmp_path: Path) -> None:
    given = dataclasses.replace(slurm_order(order, tmp_path), hosts=(HostSlots("::1", 4),))
    with pytest.raises(ConfigError, match="names of nodes"):
        srun.start_line(given)


def test_jsrun_line_and_its_rank_file(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    given = dataclasses.replace(order, arguments=("-x", "a b"), tcp=True)
    monkeypatch.setattr(jsrun, "node_shape", lambda *_: NodeShape(cores=4, gpus=2, threads_per_core=2))
    line = jsrun.start_line(given)
    words = ("--erf_input", f"{order.folder}/ranks.erf", "--smpiargs", "-tcp -x 'a b'", *COMMAND)
    assert line.words[1:] == words
    assert line.environment == order.environment
    bound = dataclasses.replace(given, binding=("--nrs", "4"), arguments=(), tcp=False)

    def shape(*_: object) -> NodeShape:
        raise AssertionError("nobody needs it")

    monkeypatch.setattr(jsrun, "node_shape", shape)
    assert jsrun.start_line(bound).words[1:] == ("--nrs", "4", *COMMAND)


def test_rank_file_shares_out_the_cores_of_each_host() -> None:
    hosts = (HostSlots("a", 2), HostSlots("b", 2), HostSlots("c", 2))
    assert rank_file(hosts, 3, NodeShape(cores=4, gpus=2, threads_per_core=2)) == (
        "overlapping_rs: allow\n"
        "cpu_index_using: logical\n"
        "\n"
        "rank: 0: { hostname: a; cpu: {0-3} ; gpu: * ; mem: * }\n"
        "rank: 1: { hostname: a; cpu: {4-7} ; gpu: * ; mem: * }\n"
        "\n"
        "rank: 2: { hostname: b; cpu: {0-3} ; gpu: * ; mem: * }\n"
    )


def test_rank_file_refuses_what_does_not_fit() -> None:
    shape = NodeShape(cores=4, gpus=2, threads_per_core=1)
    with pytest.raises(ConfigError, match="Host a has 2 GPUs, not 3"):
        rank_file((HostSlots("a", 3),), 3, shape)
    with pytest.raises(ConfigError, match="3 processes were requested, but the hosts have 2"):
        rank_file((HostSlots("a", 2),), 3, shape)


# From the command line to the order.


def ordered(environment: Mapping[str, str], *words: str, folder: Path) -> Any:
    program(folder, "mpirun", ":")
    job = dataclasses.replace(to_job(parse_command_line([*words, "train", "x"])), launcher="mpirun")
    return make_order(job, {**environment, "PATH": str(folder)}, folder)


def test_options_reach_the_order(tmp_path: Path) -> None:
    given = (
        "-p",
        "22",
        "-i",
        "key",
        "--ssh-args",
        "-l me",
        "--mpi-args=-x A",
        "--binding-args",
        "-bind-to core",
    )
    order = ordered({"B": "1", "A": "2"}, "-np", "3", "-H", "a:2,b:2,c:1", *given, "--tcp", folder=tmp_path)
    assert order.ssh == ("-p", "22", "-i", "key", "-l", "me")
    assert order.arguments == ("-x", "A")
    assert order.binding == ("-bind-to", "core")
    assert order.tcp
    assert order.hosts == (HostSlots("a", 2), HostSlots("b", 1)), "no more slots than processes"
    assert order.command[1] == "-c"
    assert "horovod.launch.rank_wrapper" in order.command[2]
    assert "\n" not in order.command[2]
    assert order.command[3:] == ("mpirun", "-:-:-", "train", "x")
    assert order.exported == ("A", "B", "PATH")


def test_exported_are_names_that_mean_something_elsewhere() -> None:
    environment = dict.fromkeys(
        [
            "PATH",
            "HOROVOD_RANK",
            "SLURM_PROCID",
            "OMPI_COMM_WORLD_RANK",
            "PMI_FD",
            "a-b",
            "PBS_NODEFILE",
            "X1",
        ]
    )
    assert exported_names(dict.fromkeys(environment, "")) == ("HOROVOD_RANK", "PATH", "X1")


def test_nothing_is_handed_over_that_was_not_given() -> None:
    job = to_job(parse_command_line(["-np", "2", "true"]))
    assert (job.arguments, job.binding, job.tcp) == ((), None, False)
