"""Hosts from batch systems, by their variables and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from horovod.errors import ConfigError, LaunchError
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import to_job
from horovod.launch.placement.allocations import find_allocation
from horovod.launch.placement.lsf import NodeShape, ask_program, lsf_allocation, node_shape

CSM = "/opt/ibm/csm/bin"
CSM_SAYS = {
    f"{CSM}/csm_allocation_query -a 77": "---\ncompute_nodes:\n - c2\n - c1\nisolated_cores: 1\n...\n",
    f"{CSM}/csm_node_attributes_query -n c1": (
        "Record_1:\n discovered_cores: 44\n discovered_sockets: 2\n discovered_gpus: 6\n"
    ),
    "ssh -o BatchMode=yes -o ForwardAgent=no -- c1 LANG=en_US.utf8 lscpu": (
        "Architecture: ppc64le\nThread(s) per core:  4\n"
    ),
}


def csm(command: Sequence[str]) -> str:
    return CSM_SAYS[" ".join(command)]


def found(environ: Mapping[str, str]) -> list[tuple[str, int]] | None:
    allocated = find_allocation(environ)
    return None if allocated is None else [(host.name, host.slots) for host in allocated.hosts]


def slurm(**further: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2,5]", **further}


def test_outside_of_any_allocation_there_is_none() -> None:
    assert found({}) is None


@pytest.mark.parametrize(
    ("tasks", "slots"),
    [("2(x3)", [2, 2, 2]), ("3,1,2", [3, 1, 2]), ("3,1(x2)", [3, 1, 1])],
)
def test_slurm_hosts_have_their_tasks_as_slots(tasks: str, slots: list[int]) -> None:
    names = ["n1", "n2", "n5"]
    assert found(slurm(SLURM_TASKS_PER_NODE=tasks)) == list(zip(names, slots, strict=True))


def test_slurm_job_may_be_meant_for_fewer_tasks_than_fit() -> None:
    allocated = find_allocation(slurm(SLURM_TASKS_PER_NODE="2(x3)", SLURM_NTASKS="5"))
    assert allocated is not None
    assert allocated.processes == 5
    assert to_job(parse_command_line(["true"]), allocated).processes == 5
    assert to_job(parse_command_line(["-np", "6", "true"]), allocated).processes == 6
    assert to_job(parse_command_line(["-H", "a:2", "true"]), allocated).processes == 2


def test_slurm_node_lists_of_several_parts() -> None:
    environ = slurm(SLURM_JOB_NODELIST="a[1-2]-ib,login,b[7,9]", SLURM_TASKS_PER_NODE="1(x5)")
    assert found(environ) == [("a1-ib", 1), ("a2-ib", 1), ("login", 1), ("b7", 1), ("b9", 1)]


def test_in_a_shell_that_is_a_step_the_cores_decide() -> None:
    # An interactive shell is a step of one task on the first node.
    environ = slurm(
        SLURM_STEP_ID="4294967290",
        SLURM_STEP_NUM_TASKS="1",
        SLURM_TASKS_PER_NODE="1",
        SLURM_JOB_CPUS_PER_NODE="8(x2),4",
        SLURM_CPUS_PER_TASK="4",
    )
    assert found(environ) == [("n1", 2), ("n2", 2), ("n5", 1)]


def test_one_of_many_tasks_of_srun_is_no_place_to_start_a_job() -> None:
    environ = slurm(SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="2", SLURM_TASKS_PER_NODE="4")
    with pytest.raises(ConfigError, match="task 2 of 4 of srun"):
        found(environ)


@pytest.mark.parametrize("tasks", ["", "2", "2(x4)"])
def test_slurm_that_does_not_say_how_many_tasks_is_an_error(tasks: str) -> None:
    with pytest.raises(ConfigError, match=r"3 nodes .*SLURM_TASKS_PER_NODE=.* does not say"):
        found(slurm(SLURM_TASKS_PER_NODE=tasks))


def test_unreadable_slurm_counts_are_named() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_TASKS_PER_NODE=2\(y3\) cannot be read"):
        found(slurm(SLURM_TASKS_PER_NODE="2(y3)"))


def test_pbs_file_has_a_line_per_slot(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2.cluster\nn1\n")
    environ = {"PBS_JOBID": "3.server", "PBS_NODEFILE": str(tmp_path / "nodes")}
    assert found(environ) == [("n1", 3), ("n2.cluster", 1)]


def test_missing_file_of_hosts_is_an_error_and_not_a_job_on_one_machine() -> None:
    with pytest.raises(ConfigError, match=r"PBS_NODEFILE names the hosts in /no/file.*No such file"):
        found({"PBS_JOBID": "3", "PBS_NODEFILE": "/no/file"})


def test_grid_engine_file_has_slots_in_the_second_column(tmp_path: Path) -> None:
    (tmp_path / "pe").write_text("n1.cluster 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 <NULL>\n")
    environ = {"JOB_ID": "12", "PE_HOSTFILE": str(tmp_path / "pe")}
    assert found(environ) == [("n1.cluster", 4), ("n2", 2)]
    (tmp_path / "pe").write_text("n1\n")
    with pytest.raises(ConfigError, match="pe, line 1: cannot read 'n1'"):
        found(environ)


def test_lsf_file_then_pairs_then_names(tmp_path: Path) -> None:
    (tmp_path / "djob").write_text("n1\nn1\nn2\n")
    environ = {"LSB_JOBID": "9", "LSB_HOSTS": "n4 n5 n4"}
    assert found(environ) == [("n4", 2), ("n5", 1)]
    environ["LSB_MCPU_HOSTS"] = "n1 8 n3 4"
    assert found(environ) == [("n1", 8), ("n3", 4)]
    environ["LSB_DJOB_HOSTFILE"] = str(tmp_path / "djob")
    assert found(environ) == [("n1", 2), ("n2", 1)]


@pytest.mark.parametrize("text", ["n1", "n1 x", "n1 2 n2"])
def test_unreadable_lsf_pairs_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"LSB_MCPU_HOSTS={text} cannot be read"):
        found({"LSB_JOBID": "9", "LSB_MCPU_HOSTS": text})


def test_missing_lsf_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"LSB_DJOB_HOSTFILE names the hosts in /no/file.* cannot be read"):
        found({"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": "/no/file"})


def test_csm_says_hosts_and_gpus() -> None:
    environ = {"LSB_JOBID": "9", "CSM_ALLOCATION_ID": "77", "LSB_MCPU_HOSTS": "batch 1 c1 42 c2 42"}
    allocated = lsf_allocation(environ, csm)
    assert allocated is not None
    assert [(host.name, host.slots) for host in allocated.hosts] == [("c1", 6), ("c2", 6)]
    assert node_shape("jsrun", environ, csm) == NodeShape(cores=42, gpus=6, threads_per_core=4)


def test_without_csm_the_shape_of_nodes_is_unknown() -> None:
    with pytest.raises(ConfigError, match="--binding-args='--erf_input FILE'"):
        node_shape("jsrun", {"LSB_JOBID": "9"}, csm)


@pytest.mark.parametrize("text", ["", "- a", "a: [", "compute_nodes: []"])
def test_unreadable_answers_of_csm_are_errors(text: str) -> None:
    with pytest.raises(LaunchError):
        lsf_allocation({"LSB_JOBID": "9", "CSM_ALLOCATION_ID": "77"}, lambda _: text)


def test_failing_query_names_command_and_status() -> None:
    with pytest.raises(LaunchError, match=r"sh -c echo no >&2; exit 3 ended with status 3: no"):
        ask_program(["sh", "-c", "echo no >&2; exit 3"])
    with pytest.raises(LaunchError, match=r"/no/program -a cannot be run"):
        ask_program(["/no/program", "-a"])


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        (
            "OMPI_MCA_orte_default_hostfile",
            "job-worker-0.job.ns.svc slots=2\njob-worker-1.job.ns.svc slots=2\n",
        ),
        ("HYDRA_HOST_FILE", "job-worker-0.job.ns.svc:2\njob-worker-1.job.ns.svc:2\n"),
        ("I_MPI_HYDRA_HOST_FILE", "job-worker-0.job.ns.svc:2\njob-worker-1.job.ns.svc:2\n"),
    ],
)
def test_launcher_pod_of_an_mpijob_reads_the_hostfile(variable: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text(line)
    environ = {"K_MPI_JOB_ROLE": "launcher", variable: str(tmp_path / "hostfile")}
    assert found(environ) == [("job-worker-0.job.ns.svc", 2), ("job-worker-1.job.ns.svc", 2)]
    assert found({**environ, "K_MPI_JOB_ROLE": "worker"}) is None
    assert found({variable: str(tmp_path / "hostfile")}) is None, "outside of a pod it configures MPI only"
    assert found({variable: str(tmp_path / "hostfile"), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is not None


def test_bare_names_in_a_pod_have_the_slots_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("w0\nw1\n")
    environ = {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile"),
        "OMPI_MCA_orte_set_default_slots": "4",
    }
    assert found(environ) == [("w0", 4), ("w1", 4)]


def test_a_pod_without_hostfile_is_no_mpijob() -> None:
    assert found({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None


def test_names_that_would_be_options_of_ssh_are_refused_from_every_source(tmp_path: Path) -> None:
    name = "-oProxyCommand=touch${IFS}x"
    file = tmp_path / "hosts"
    sources: list[dict[str, str]] = [
        {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": f"{name} 2"},
        {"LSB_JOBID": "9", "LSB_HOSTS": f"{name} b"},
        {"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": str(file)},
        {"JOB_ID": "9", "PE_HOSTFILE": str(file)},
        {"PBS_JOBID": "9", "PBS_NODEFILE": str(file)},
        {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": f"{name}", "SLURM_TASKS_PER_NODE": "1"},
    ]
    file.write_text(f"{name} 2 all.q 1\n")
    for environ in sources:
        with pytest.raises(ConfigError):
            find_allocation(environ)


@pytest.mark.parametrize(
    "said",
    [
        "[" * 3000,
        "compute_nodes: 5",
        "compute_nodes: [[a]]",
        "compute_nodes: [a, '-v']",
        "2020-99-99",
    ],
)
def test_nonsense_from_csm_is_told(said: str) -> None:
    environ = {"LSB_JOBID": "9", "CSM_ALLOCATION_ID": "3"}
    node = "Record_1: {discovered_gpus: 6, discovered_sockets: 2, discovered_cores: 44}"
    with pytest.raises((ConfigError, LaunchError)):
        lsf_allocation(environ, lambda words: said if "allocation" in words[0] else node)


@pytest.mark.parametrize("isolated", ["many", "-1", "[1]", "40", "1e400"])
def test_nonsense_from_csm_about_cores_is_told(isolated: str) -> None:
    said = {"csm_allocation_query": f"compute_nodes: [a]\nisolated_cores: {isolated}"}
    node = "Record_1: {discovered_gpus: 6, discovered_sockets: 2, discovered_cores: 44}"
    with pytest.raises((ConfigError, LaunchError)):
        node_shape("jsrun", {"CSM_ALLOCATION_ID": "3"}, lambda words: said.get(Path(words[0]).name, node))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLURM_TASKS_PER_NODE", "2(x999999999)"),
        ("SLURM_TASKS_PER_NODE", "9" * 5000),
        ("SLURM_NTASKS", "9" * 5000),
        ("SLURM_JOB_NODELIST", ",".join(["a[0-65535]"] * 3)),
    ],
)
def test_absurd_numbers_of_slurm_are_told(variable: str, value: str) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    with pytest.raises(ConfigError, match="cannot be read"):
        find_allocation({**environ, variable: value})


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a slots=" + b"9" * 5000, b"a[0-65535]\nb"])
def test_files_of_hosts_that_make_no_sense_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(ConfigError, match="hosts"):
        find_allocation({"PBS_JOBID": "1", "PBS_NODEFILE": str(tmp_path / "hosts")})
