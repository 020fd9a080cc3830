"""``jsrun``: its command line for a job of LSF, and the file that says where ranks go."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from horovod.errors import ConfigError
from horovod.launch.external.program import Order, StartLine
from horovod.launch.phrases import counted
from horovod.launch.placement.hosts import HostSlots, too_few_slots
from horovod.launch.placement.lsf import NodeShape, node_shape

__all__ = ["start_line", "rank_file"]


def start_line(order: Order) -> StartLine:
    """A command line that asks CSM for the cores and GPUs of the hosts, if nobody has said how to bind."""
    words = [order.program]
    if order.binding is not None:
        words += order.binding
    else:
        file = order.folder / "ranks.erf"
        file.write_text(rank_file(order.hosts, order.processes, node_shape("jsrun", order.environment)))
        words += ["--erf_input", str(file)]
    flags = [*(["-tcp"] if order.tcp else []), *order.arguments]
    if flags:
        words += ["--smpiargs", shlex.join(flags)]
    return StartLine((*words, *order.command), order.environment)


def rank_file(hosts: Sequence[HostSlots], processes: int, shape: NodeShape) -> str:
    """An explicit resource file: a rank per GPU, the cores shared out in order.

    Raises:
        ConfigError: there are not enough slots, or more slots on a host than GPUs.
    """
    lines = ["overlapping_rs: allow", "cpu_index_using: logical"]
    width = shape.cores * shape.threads_per_core // max(1, shape.gpus)
    rank = 0
    for host in hosts:
        if host.slots > shape.gpus:
            raise ConfigError(
                f"Host {host.name} has {counted(shape.gpus, 'GPU')}, not {host.slots}: jsrun places one rank "
                "on each. "
                "Ask for fewer, or place them with --binding-args."
            )
        if rank < processes and host.slots:
            lines.append("")
        for local in range(min(host.slots, processes - rank)):
            cpus = f"{{{local * width}-{(local + 1) * width - 1}}}"
            lines.append(f"rank: {rank}: {{ hostname: {host.name}; cpu: {cpus} ; gpu: * ; mem: * }}")
            rank += 1
    if rank < processes:
        raise ConfigError(f"{too_few_slots(processes, rank)}.")
    return "\n".join(lines) + "\n"
