"""The nodes of the cluster, and what they are called."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
import ray.util.client
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.errors import LaunchError

__all__ = ["Node", "NodeNames", "alive_nodes", "connection", "describe_resources", "on_node", "require_ray"]


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
