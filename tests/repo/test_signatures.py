"""The signatures of signatures.txt, the interface that scripts were written for, hold to the letter."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_name("signatures.txt")

# What the table holds and the library does not offer yet: module, or module and name -> why.
LATER: dict[str, str] = {}
# Parameters with defaults that the library accepts beyond the table: calls written for the table still work.
EXTENSIONS = {
    "horovod.run": ", *, env=None, stdout=None, stderr=None, unpickle_results=False, discovery=None",
    "horovod.runner.elastic.discovery.HostDiscoveryScript": ", *, limit_s=60.0",
    "horovod.tensorflow._DistributedGradientTape.gradient": ", unconnected_gradients=UNCONNECTED",
    "horovod.tensorflow._DistributedGradientTape.get_local_and_global_gradients": (
        ", unconnected_gradients=UNCONNECTED"
    ),
    "horovod.tensorflow.data.compute_service.TfDataServiceConfig.read": ", timeout_s=600.0",
    "horovod.keras.DistributedOptimizer": (
        ", backward_passes_per_step=1, average_aggregated_gradients=False, process_set=global_process_set, "
        "scale_local_gradients=True"
    ),
    "horovod.torch.SyncBatchNorm": ", process_set=global_process_set",
    "horovod.torch.optimizer._DistributedOptimizer.zero_grad": "set_to_none=True",
    "horovod.torch.optimizer._DistributedAdasumOptimizer.zero_grad": "set_to_none=True",
}


def table() -> list[tuple[str, str]]:
    """(module, signature) of every line."""
    rows, module = [], ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            rows.append((module, line))
    return rows


def actual(module: Any, path: str) -> inspect.Signature:
    """Signature of a function, class or method without `self`, as a caller sees it."""
    owner, _, attribute = path.rpartition(".")
    holder = getattr(module, owner) if owner else module
    signature = inspect.signature(getattr(holder, attribute))
    if owner and inspect.isfunction(inspect.getattr_static(holder, attribute)):
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def parameters(signature: inspect.Signature) -> list[tuple[str, str, Any]]:
    return [(p.name, p.kind.description, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize(("module_name", "line"), table(), ids=lambda text: str(text).split("(")[0])
def test_signature(module_name: str, line: str) -> None:
    path, _, arguments = line.partition("(")
    if module_name in LATER or f"{module_name}.{path}" in LATER:
        with pytest.raises((ImportError, AttributeError)):
            actual(importlib.import_module(module_name), path)
        return
    module = importlib.import_module(module_name)
    names = dict(vars(importlib.import_module("horovod.torch")))
    names["UNCONNECTED"] = importlib.import_module("tensorflow").UnconnectedGradients.NONE
    names["hvd"] = importlib.import_module("horovod.torch")
    extension = EXTENSIONS.get(f"{module_name}.{path}", "")
    exec(f"def expected({arguments.removesuffix(')')}{extension}): pass", names)
    assert parameters(actual(module, path)) == parameters(inspect.signature(names["expected"]))
