"""Discovery of Ray's nodes for an elastic job, and one that lets them come and go."""

from __future__ import annotations

import random
import time
from typing import Any

import ray

from horovod.launch.elastic.discovery import HostDiscovery
from horovod.ray.nodes import NodeNames, on_node

__all__ = ["RayHostDiscovery", "TestDiscovery"]


class RayHostDiscovery(HostDiscovery):
    """The nodes of the cluster that are alive.

    A node is called by its address; where several nodes have the same, by address and id. All resources of a
    node count, also those that others use: the cluster is meant to belong to the job.

    Args:
        use_gpu: whether each rank has GPUs.
        cpus_per_worker: CPUs of each rank.
        gpus_per_worker: GPUs of each rank, if it has them.
    """

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float = 1) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker
        self.names = NodeNames()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Number of ranks that fit on each node; nodes without room are left out."""
        gpus = self.gpus_per_worker if self.use_gpu else 0
        slots = {name: node.slots(self.cpus_per_worker, gpus) for name, node in self.names.nodes().items()}
        return {name: count for name, count in slots.items() if count}


class TestDiscovery(RayHostDiscovery):
    """For trying out what a job does when nodes come and go: every so many seconds one is taken away, or one
    of those comes back, by chance.

    Args:
        min_hosts: nodes that always stay; with no more one comes back.
        max_hosts: with so many one is taken away.
        change_frequency_s: seconds between two changes.
        use_gpu, cpus_per_worker, gpus_per_worker: as of :class:`RayHostDiscovery`.
        verbose: print each change.
        _graceful: a node that is taken away lives on, unused. False: its Ray is killed, unless it is the node
            of this process; it does not come back.
    """

    __test__ = False  # for pytest

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
        self._min_hosts = min_hosts
        self._max_hosts = max_hosts
        self._change_frequency_s = change_frequency_s
        self._verbose = verbose
        self._graceful = _graceful
        self._removed: set[str] = set()
        self._changed_at = time.monotonic()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Slots by node, without the nodes that are taken away now."""
        found = super().find_available_hosts_and_slots()
        self._removed &= set(found)
        if time.monotonic() - self._changed_at >= self._change_frequency_s:
            self._changed_at = time.monotonic()
            self.change_hosts(found)
        return {name: slots for name, slots in found.items() if name not in self._removed}

    def change_hosts(self, hosts: dict[str, int]) -> None:
        """Take one of ``hosts`` away, or bring one back."""
        used = len(hosts) - len(self._removed)
        if self._removed and (used <= self._min_hosts or (used < self._max_hosts and random.random() < 0.5)):
            self.add_host(hosts)
        elif used > self._min_hosts:
            self.remove_host(hosts)

    def add_host(self, hosts: dict[str, int]) -> None:
        """Bring one back."""
        name = random.choice(sorted(self._removed & set(hosts)))
        self._removed.discard(name)
        self._say(f"{name} comes back")

    def remove_host(self, hosts: dict[str, int]) -> None:
        """Take one away."""
        name = random.choice(sorted(set(hosts) - self._removed))
        node = self.names.node_of(name)
        if not self._graceful and node != ray.get_runtime_context().get_node_id():
            _end_node(node)
        self._removed.add(name)
        self._say(f"{name} is taken away")

    def _say(self, text: str) -> None:
        if self._verbose:
            print(f"TestDiscovery: {text}", flush=True)


def _end_node(node_id: str) -> None:
    """Kill the Ray of a node: what has started this actor there."""
    ender: Any = ray.remote(_Ender).options(num_cpus=0, scheduling_strategy=on_node(node_id)).remote()
    ender.end.remote()


class _Ender:
    def end(self) -> None:
        """The parent of each process of Ray's is what Ray runs on this node."""
        import os
        import signal

        os.kill(os.getppid(), signal.SIGKILL)
