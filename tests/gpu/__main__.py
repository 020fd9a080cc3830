"""Everything that needs a device, as one table: ``make test-gpu``.

    make test-gpu GPU_ARGS="--only load growth --json gpu.json"
    FARANDOLE_TEST_DEVICE=fake make test-gpu GPU_ARGS=--small

Exits with 0 if all is right, with 1 if something is wrong, and with 2 if there is no device. Goals for speed
are said, and fail nothing. ``--small`` tries the programs with a few operations; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import fakes
from tests.gpu.checks import CHECKS, WAYS, Machine, rows_of
from tests.gpu.table import Row, as_json, failed, rendered

from horovod.devices.inventory import Inventory, take_inventory

__all__ = ["main"]

_NO_DEVICE = 2


def obstacle(inventory: Inventory, cuda: str | None) -> str:
    """One sentence on why nothing can be run; empty if it can. ``cuda``: of PyTorch's build."""
    if not inventory.devices:
        return (
            f"No device: {inventory.problem}. Looked for NVIDIA's driver (libcuda.so.1) and a device that it "
            "shows: run this on a machine that has them (in a container: docker run --gpus all), or set "
            "FARANDOLE_TEST_DEVICE=fake to try the programs on the stand-ins."
        )
    if cuda is None:
        return (
            "There is a device, but PyTorch in this environment is not built for CUDA (torch.version.cuda "
            "is None): install one that is (https://pytorch.org/get-started/locally), and name its Python: "
            "make test-gpu GPU_PYTHON=…"
        )
    return ""


def _cuda_of_torch() -> str | None:
    import torch

    version: str | None = torch.version.cuda
    return version


def _machine(inventory: Inventory, kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "devices": [device.name for device in inventory.devices],
        "driver": inventory.driver,
        "cuda": inventory.cuda,
        "nccl": str(inventory.nccl) if inventory.nccl else inventory.nccl_problem,
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
        "host": platform.platform(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    names = list(dict.fromkeys(check.name for check in CHECKS))
    parser = argparse.ArgumentParser(
        prog="make test-gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="CHECK", help=", ".join(names)
    )
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[], metavar="WAY")
    parser.add_argument("--json", type=Path, default=Path("build/gpu.json"), help="(default: %(default)s)")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args(arguments)

    kind = os.environ.get("FARANDOLE_TEST_DEVICE") or "cuda"
    fake = kind == "fake"
    variables = fakes.environment(FAKE_CUDA_DEVICES=os.environ.get("FAKE_CUDA_DEVICES", "2"))
    inventory = take_inventory(variables if fake else os.environ)
    if problem := obstacle(inventory, "" if fake else _cuda_of_torch()):
        print(problem, file=sys.stderr)
        return _NO_DEVICE
    # The tables of cases are those of the ranks; this process itself does nothing on the stand-in.
    os.environ.pop("FARANDOLE_TEST_DEVICE", None)
    if not fake:
        os.environ["FARANDOLE_TEST_DEVICE"] = kind
    machine = Machine(kind, len(inventory.devices), given.small)
    rows: list[Row] = []
    for check in CHECKS:
        if check.name in given.only:
            print(f"{check.name} …", file=sys.stderr, flush=True)
            rows += rows_of(check, machine, given.ways)
    about = _machine(inventory, kind)
    print("\n".join(f"{name}: {value}" for name, value in about.items()), end="\n\n")
    print(rendered(rows))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(as_json(about, rows))
    print(f"written to {given.json}")
    return 1 if failed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
