"""Options of other launchers, and what ``horovodrun`` calls the same thing.

People who come from ``torchrun`` or ``mpirun`` write what they know. It is an error, as half of what such an
option says would be lost; the error says which words do the same here.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ANSWERS", "answer", "ours"]

_HOSTS = "-H server1:4,server2:4 (or --hostfile): it is started once, on one machine, and starts the others"
_FOUND = "leave it out: ranks find each other by themselves"
_FOLDER = "--output-filename DIR, which keeps both streams of every rank in files and shows them, too"
_SHOWN = "--output-filename DIR --show-ranks 0, which keeps all in files and shows rank 0 only"
_WATCHED = "leave it out: the end of a process is noticed at once"

# Whose they are -> what each of them is here. Dashes and underscores mean the same.
_OF_OTHERS: Mapping[str, Mapping[str, str]] = {
    "torchrun": {
        "--nproc-per-node": "-np N, which counts the processes of the whole job (-np auto: one for each GPU "
        "or core here); with several hosts -H server1:N,server2:N",
        "--nnodes": _HOSTS,
        "--node-rank": _HOSTS,
        "--master-addr": _FOUND,
        "--master-port": _FOUND,
        "--local-addr": "--network-interfaces eth1,10.1.0.0/16",
        "--rdzv-backend": _FOUND,
        "--rdzv-endpoint": _FOUND,
        "--rdzv-id": _FOUND,
        "--rdzv-conf": _FOUND,
        "--standalone": "leave it out: without -H the job runs on this machine, and opens no port",
        "--monitor-interval": _WATCHED,
        "--log-dir": _FOLDER,
        "--tee": _FOLDER,
        "-t": _FOLDER,
        "--redirects": _SHOWN,
        "--local-ranks-filter": _SHOWN,
        "--module": "python -m MODULE as the command",
        "-m": "python -m MODULE as the command",
        "--no-python": "leave it out: the command is started as it is",
        "--run-path": "python SCRIPT as the command",
        "--role": "leave it out",
        "--start-method": "leave it out: the command is started once for each rank",
        "--logs-specs": _FOLDER,
    },
    "mpirun": {
        "-n": "-np N",
        "--np": "-np N",
        "-N": "-np N, which counts the processes of the whole job",
        "--ppn": "-np N, which counts the processes of the whole job",
        "-ppn": "-np N, which counts the processes of the whole job",
        "-x": "NAME=VALUE in front of horovodrun: ranks have its environment",
        "--machinefile": "--hostfile FILE",
        "--oversubscribe": "leave it out: there may be more ranks than cores",
        "--allow-run-as-root": "leave it out",
        "--bind-to": '--mpi --binding-args="--bind-to core"',
        "--map-by": '--mpi --binding-args="--map-by slot"',
        "--mca": '--mpi --mpi-args="--mca x y"',
    },
    "accelerate": {
        "--num-processes": "-np N",
        "--num-machines": _HOSTS,
        "--machine-rank": _HOSTS,
        "--main-process-ip": _FOUND,
        "--main-process-port": _FOUND,
    },
    "deepspeed": {"--num-gpus": "-np N", "--num-nodes": _HOSTS, "--include": "-H server1:4,server2:4"},
}

ANSWERS: Mapping[str, tuple[str, str]] = {
    spelling: (program, words) for program, table in _OF_OTHERS.items() for spelling, words in table.items()
}
"""The program that has an option of this spelling, and what to write here."""


_NO_OPTIONS: Mapping[str, str] = {
    "--elastic": "A job is elastic with --min-np N, or with --host-discovery-script COMMAND: "
    "horovodrun -np 4 --min-np 2 python train.py",
}


def ours(name: str) -> str:
    """Advice for a word that looks like an option of ours, and would be taken for the
    abbreviation of another one; empty: nothing is known of it.
    """
    return _NO_OPTIONS.get(name, "")


def answer(name: str) -> str:
    """Text after "unknown option": whose it is and what to write; empty if no launcher is known for it."""
    program, words = ANSWERS.get(name) or ANSWERS.get(name.replace("_", "-")) or ("", "")
    return f", which is {program}'s. Here: {words}" if program else ""
