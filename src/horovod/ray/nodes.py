"""Nodes of the cluster: their names, their resources, and their discovery for elastic jobs."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
import ray.util.client
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.errors import LaunchError
from horovod.launch.elastic.discovery import HostDiscovery

__all__ = [
    "Node",
    "NodeNames",
    "RayHostDiscovery",
    "TestDiscovery",
    "alive_nodes",
    "connection",
    "describe_resources",
    "on_node",
    "require_ray",
]


class Node(NamedTuple):
    """A node that is alive, with all its resources, free or not."""

    node_id: str
    address: str
    hostname: str
    resources: Mapping[str, float]

    def slots(self, cpus: float, gpus: float) -> int:
        """Number of workers that fit there."""
        wanted = {"CPU": cpus, "GPU": gpus}
        fit = [self.resources.get(name, 0.0) / each for name, each in wanted.items() if each > 0]
        return math.floor(min(fit, default=0.0) + 1e-9)  # of fractions


class NodeNames:
    """Names of nodes in elastic jobs: their address, and where several have the same, the id as well. A node
    keeps its name. For any thread.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by node
        self._lock = threading.Lock()  # who looks for nodes is not who starts workers there

    def nodes(self) -> dict[str, Node]:
        """Nodes that are alive, by name."""
        with self._lock:
            found = alive_nodes()
            alive = {node.node_id for node in found}
            self._names = {node: name for node, name in self._names.items() if node in alive}
            for node in found:
                if node.node_id not in self._names:
                    taken = node.address in self._names.values()
                    own = f"{node.address}-{node.node_id[:8]}"
                    self._names[node.node_id] = own if taken else node.address
            return {self._names[node.node_id]: node for node in found}

    def node_of(self, name: str) -> str:
        """The id of the node with this name, address, host name or id.

        Raises:
            LaunchError: none is alive.
        """
        named = self.nodes()
        if name in named:
            return named[name].node_id
        for node in named.values():
            if name in (node.node_id, node.address, node.hostname):
                return node.node_id
        raise LaunchError(
            f"Ray has no node {name} that is alive. It has: {', '.join(sorted(named)) or 'none'}."
        )


def alive_nodes() -> list[Node]:
    """In Ray's order."""
    return [
        Node(each["NodeID"], each["NodeManagerAddress"], each["NodeManagerHostname"], each["Resources"])
        for each in ray.nodes()
        if each["Alive"]
    ]


def on_node(node_id: str) -> Any:
    """Strategy that schedules an actor on this node, or nowhere."""
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def describe_resources() -> str:
    """Describe the resources that are free in the cluster, for people."""
    free, all_of = ray.available_resources(), ray.cluster_resources()
    named = [name for name in ("CPU", "GPU") if name in all_of]
    named += sorted(
        name
        for name in all_of
        if name.isidentifier() and name not in named and "memory" not in name and "_group_" not in name
    )
    shown = ", ".join(f"{name} {free.get(name, 0.0):g} of {all_of[name]:g}" for name in named)
    return f"free in the cluster, of all that it has: {shown or 'nothing'}"


def connection() -> str:
    """Identity of this process's connection to Ray; empty: there is none. ``ray.shutdown()`` ends it, and all
    actors and placement groups that were made in it.
    """
    if not ray.is_initialized():
        return ""
    here = ray.get_runtime_context()
    return f"{here.get_job_id()} {here.get_node_id()}"  # a later cluster has the same jobs, but no node


def require_ray(who: str) -> None:
    """
    Raises:
        LaunchError: this process is not connected to Ray, or by Ray Client.
    """
    if ray.util.client.ray.is_connected():
        raise LaunchError(
            f"{who}: this process is connected by Ray Client, so ranks cannot reach it. Run the script "
            "inside the cluster, as `ray job submit` does."
        )
    if not ray.is_initialized():
        raise LaunchError(
            f"{who} needs Ray, and this process is not connected to a cluster. Call ray.init() first, or "
            'ray.init(address="auto") on a machine of a running one.'
        )


class RayHostDiscovery(HostDiscovery):
    """The nodes of the cluster that are alive.

    A node is called by its address; where several nodes have the same, by address and id. All resources of a
    node count, also those that others use: the cluster is meant to belong to the job.

    Args:
        use_gpu: whether each rank has GPUs.
        cpus_per_worker: CPUs of each rank.
        gpus_per_worker: GPUs of each rank, if it has them.
        cpus_per_slot, gpus_per_slot: former names of these two.
    """

    def __init__(
        self,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 1,
        *,
        cpus_per_slot: float | None = None,
        gpus_per_slot: float | None = None,
    ) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker if cpus_per_slot is None else cpus_per_slot
        self.gpus_per_worker = gpus_per_worker if gpus_per_slot is None else gpus_per_slot
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
        use_gpu, cpus_per_worker, gpus_per_worker, former: as of :class:`RayHostDiscovery`.
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
        **former: float,
    ) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker, **former)
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
