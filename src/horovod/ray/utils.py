"""Network interfaces of the nodes, for programs that place the ranks themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from horovod.bootstrap.place.addresses import loopback_addresses, own_addresses
from horovod.launch.calls.functions import interface_names
from horovod.launch.environment import interface_environment
from horovod.launch.placement.addresses import names_of_this_machine
from horovod.ray.nodes import NodeNames, on_node
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["detect_nics", "map_blocking", "nics_to_env_var"]


def detect_nics(
    settings: Any, all_host_names: Sequence[str], node_workers: Sequence[Any] | None = None
) -> set[str]:
    """Names of the network interfaces that ranks should use.

    Args:
        settings: its ``nics`` are taken as they are; its ``timeout_s`` is the limit.
        all_host_names: the hosts of the ranks.
        node_workers: an actor on each of them, with ``execute.remote(function)``; by default there are some
            for a moment.

    Returns:
        Those of ``settings``; else the loopback interface, if all hosts are this machine; else what all hosts
        have, or if they have none in common, what any has. Ranks try all addresses that a host has there.

    Raises:
        ValueError: there are not as many actors as hosts.
        LaunchError: Ray has no such host.
        TimeoutError: not all answer in time; says which.
    """
    if settings.nics:
        return set(interface_names(settings.nics))
    names = list(all_host_names)
    if names_of_this_machine(names) == frozenset(names):
        return {address.interface for address in loopback_addresses()}
    if node_workers is not None and len(node_workers) != len(names):
        raise ValueError(
            f"detect_nics needs one actor for each host: there are {len(node_workers)} for {len(names)}."
        )
    made: list[Any] = []
    if node_workers is None:
        known = NodeNames()
        actor = ray.remote(BaseHorovodWorker)
        made = [
            actor.options(num_cpus=0, scheduling_strategy=on_node(known.node_of(name))).remote()
            for name in names
        ]
    try:
        asked = [each.execute.remote(_interfaces) for each in node_workers or made]
        found = ray.get(asked, timeout=settings.start_timeout.remaining())
    except GetTimeoutError:
        answered = ray.wait(asked, num_returns=len(asked), timeout=0)[0]
        late = [name for name, each in zip(names, asked, strict=True) if each not in answered]
        raise TimeoutError(
            f"detect_nics: actors on {', '.join(late)} do not answer after {settings.timeout_s:g} s. Set "
            "nics, or wait longer: timeout_s."
        ) from None
    finally:
        for each in made:
            ray.kill(each)
    return set.intersection(*found) or set.union(*found)


def nics_to_env_var(nics: Collection[str]) -> dict[str, str]:
    """The variables that say so to ranks and to NCCL; none, if ``nics`` is empty."""
    return interface_environment(sorted(interface_names(nics)))


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """Call ``fn`` with each, and wait for the objects whose references it returns."""
    return list(ray.get([fn(each) for each in collection]))


def _interfaces(_: Any) -> set[str]:
    return {address.interface for address in own_addresses()}
