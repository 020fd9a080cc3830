"""Inventory of the devices that this process would see, and of the libraries that can use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod.bootstrap.place.interpreter import as_here, module_words
from horovod.bootstrap.place.proc import lines
from horovod.devices.locality import SYS, adapters, locality_of
from horovod.devices.nccl import Nccl

__all__ = ["Device", "Inventory", "ask_nccl", "take_inventory"]

_LIMIT_S = 60.0
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        index: its number for programs that have the environment of this process.
        uuid: ``GPU-...``, or ``MIG-...`` for a part of one.
        pci: its address on the bus, ``0000:1b:00.0``.
        cores: those near it, as Linux numbers CPUs; empty if the machine does not say.
        rdma: network adapters may reach its memory.
        peers: devices whose memory it reaches directly; ``linked``: those of them by NVLink.
        links: of NVLink that are up; None: not known.
    """

    index: int
    name: str
    memory_bytes: int
    uuid: str
    pci: str
    compute_capability: str
    numa_node: int | None
    cores: tuple[int, ...]
    rdma: bool
    peers: tuple[int, ...]
    linked: tuple[int, ...]
    links: int | None


@dataclass(frozen=True)
class Inventory:
    """All devices and libraries.

    Attributes:
        problem: why there are no devices; empty if there are.
        driver: its version; ``cuda``: the newest version of CUDA that it serves. Empty if not known.
        nccl_problem: why there is no NCCL.
        peer_module: the kernel's module by which network adapters reach device memory; empty: not loaded.
        adapters: InfiniBand adapters by name, with their NUMA nodes.
    """

    devices: tuple[Device, ...]
    problem: str
    driver: str
    cuda: str
    nccl: Nccl | None
    nccl_problem: str
    peer_module: str
    adapters: Mapping[str, int | None]


def take_inventory(
    environ: Mapping[str, str] = os.environ,
    *,
    nccl: bool = True,
    sys_folder: Path = SYS,
    proc: Path = Path("/proc"),
    limit_s: float = _LIMIT_S,
) -> Inventory:
    """Ask the driver and NCCL, each in a process of its own with this environment.

    Args:
        nccl: look for NCCL as well.
        limit_s: how long each may take.
    """
    found = _ask_all(["driver", "nccl"] if nccl else ["driver"], environ, limit_s)
    driver = found["driver"]
    library, nccl_problem = _nccl(found.get("nccl", {"problem": "nobody has looked for NCCL"}))
    return Inventory(
        devices=tuple(
            _device(index, facts, sys_folder) for index, facts in enumerate(driver.get("devices", []))
        ),
        problem=driver.get("problem", ""),
        driver=_version_of_module(proc),
        cuda=driver.get("cuda", ""),
        nccl=library,
        nccl_problem=nccl_problem,
        peer_module=next((name for name in _PEER_MODULES if name in _modules(proc)), ""),
        adapters=adapters(sys_folder),
    )


def ask_nccl(environ: Mapping[str, str] = os.environ, limit_s: float = _LIMIT_S) -> tuple[Nccl | None, str]:
    """NCCL, or why there is none that can be used."""
    return _nccl(_ask_all(["nccl"], environ, limit_s)["nccl"])


def _nccl(found: Mapping[str, Any]) -> tuple[Nccl | None, str]:
    return (Nccl(found["version"], found["file"]), "") if "version" in found else (None, found["problem"])


def _device(index: int, facts: Mapping[str, Any], sys_folder: Path) -> Device:
    numa_node, cores = locality_of(facts["pci"], sys_folder)
    return Device(
        index=index,
        name=facts["name"],
        memory_bytes=facts["memory_bytes"],
        uuid=facts["uuid"],
        pci=facts["pci"],
        compute_capability=facts["compute_capability"],
        numa_node=numa_node,
        cores=cores,
        rdma=facts["rdma"],
        peers=tuple(facts["peers"]),
        linked=tuple(facts["linked"]),
        links=facts["links"],
    )


def _version_of_module(proc: Path) -> str:
    """Of NVIDIA's kernel module: "570.124.06"."""
    words = "".join(lines(proc / "driver" / "nvidia" / "version")[:1]).split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def _modules(proc: Path) -> set[str]:
    return {line.split(" ", 1)[0] for line in lines(proc / "modules")}


def _ask_all(probes: Sequence[str], environ: Mapping[str, str], limit_s: float) -> dict[str, dict[str, Any]]:
    """Run the probes, and return for each what it has found, or under ``problem`` the reason why it has found
    nothing.
    """
    children = {
        name: subprocess.Popen(
            [sys.executable, *module_words("horovod.devices.probe"), name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=as_here(environ),
        )
        for name in probes
    }
    return {name: _answer(name, child, limit_s) for name, child in children.items()}


def _answer(name: str, child: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any]:
    what = "the driver" if name == "driver" else "NCCL"
    try:
        stdout, stderr = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"problem": f"{what} did not answer in {limit_s:g} s"}
    if child.returncode < 0:
        return {"problem": f"loading {what} ended with signal {-child.returncode}"}
    said = (stdout if child.returncode == 0 else stderr).decode(errors="replace").strip().splitlines()
    if child.returncode == 0 and said:
        found: dict[str, Any] = json.loads(said[-1])
        return found
    return {"problem": f"asking {what} failed: {said[-1] if said else 'without a word'}"}
