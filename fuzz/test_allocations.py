"""What batch systems say about hosts, in variables, files and answers of programs: hosts, or a sentence."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz.test_texts import digits, names, texts
from fuzz.values import ANYTHING, changed
from hypothesis import given
from hypothesis import strategies as st

from horovod.errors import ConfigError, LaunchError
from horovod.launch.placement.allocations import find_allocation
from horovod.launch.placement.hosts import MOST_HOSTS, MOST_SLOTS, Allocated
from horovod.launch.placement.lsf import lsf_allocation, node_shape

FILE = Path(tempfile.gettempdir()) / "farandole-fuzz-hosts"
counts = st.integers(0, 9).map(str) | digits | st.sampled_from(["-1", "1e3", "", "٣", "1_0"])
entries = st.tuples(names, counts).map(" ".join)
repeated = st.lists(
    st.tuples(
        counts, st.sampled_from(["", "(x2)", "(x0)", "(x999999999)", "(x" + "9" * 5000 + ")", "(x"])
    ).map("".join),
    max_size=4,
).map(",".join)
ranges = st.lists(
    st.sampled_from(
        [
            "a[1-3]",
            "a[0-65535]",
            "a[1-2][0-60000]",
            "a[",
            "a[3-1]",
            "a[0-65535],b[0-65535]",
            "-v[1-2]",
            "a]",
            "b",
        ]
    ),
    max_size=6,
).map(",".join)
values = st.one_of(texts, counts, entries, repeated, ranges, st.lists(entries, max_size=3).map(" ".join))
VARIABLES = [
    *("K_MPI_JOB_ROLE", "KUBERNETES_SERVICE_HOST", "OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST"),
    *("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS"),
    *("LSB_JOBID", "LSB_MCPU_HOSTS", "LSB_HOSTS", "PBS_JOBID", "JOB_ID"),
]
FILES = ["OMPI_MCA_orte_default_hostfile", "LSB_DJOB_HOSTFILE", "PBS_NODEFILE", "PE_HOSTFILE"]
contents = st.one_of(
    st.lists(entries | texts | ranges, max_size=4)
    .map("\n".join)
    .map(lambda text: text.encode(errors="replace")),
    st.binary(max_size=40),
)


def fits(found: Allocated | None) -> None:
    """No program takes a name for an option, and placing ranks takes no memory to speak of."""
    if found is None:
        return
    assert not any(host.name.startswith("-") or not host.name.isprintable() for host in found.hosts)
    assert len(found.hosts) <= MOST_HOSTS
    assert all(0 <= host.slots <= MOST_SLOTS for host in found.hosts)


@given(
    environ=st.dictionaries(st.sampled_from(VARIABLES), values, min_size=1, max_size=8),
    file=st.sampled_from([*FILES, ""]),
    content=contents,
    job=st.sampled_from(["SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "JOB_ID", "KUBERNETES_SERVICE_HOST"]),
)
def test_hosts_of_a_batch_system(environ: dict[str, str], file: str, content: bytes, job: str) -> None:
    if file:
        FILE.write_bytes(content)
        environ = {**environ, file: str(FILE)}
    # LSF's programs are another test's.
    environ = {"K_MPI_JOB_ROLE": "launcher" if job.startswith("K") else "worker", **environ, job: "7"}
    with contextlib.suppress(ConfigError):
        fits(find_allocation(environ))


ALLOCATION = {"compute_nodes": ["b", "a"], "isolated_cores": 1}
NODE = {"Record_1": {"discovered_gpus": 6, "discovered_sockets": 2, "discovered_cores": 44}}
CPU = {"Thread(s) per core": 4}


def answers(usual: Any) -> st.SearchStrategy[str]:
    return (
        changed(usual).map(json.dumps)
        | ANYTHING.map(json.dumps)
        | texts
        | st.sampled_from(["[" * 30, "&a *a"])
    )


@given(allocation=answers(ALLOCATION), node=answers(NODE), cpu=answers(CPU))
def test_what_programs_of_a_batch_system_say(allocation: str, node: str, cpu: str) -> None:
    def ask(command: Sequence[str]) -> str:
        kind = {"csm_allocation_query": allocation, "csm_node_attributes_query": node}
        return kind.get(command[0].rpartition("/")[2], cpu)

    environ = {"LSB_JOBID": "1", "CSM_ALLOCATION_ID": "2"}
    with contextlib.suppress(ConfigError, LaunchError):
        fits(lsf_allocation(environ, ask))
    with contextlib.suppress(ConfigError, LaunchError):
        shape = node_shape("jsrun", environ, ask)
        assert 0 < shape.cores < 1 << 20
        assert 0 <= shape.gpus < 1 << 20
        assert 0 < shape.threads_per_core < 1 << 20
