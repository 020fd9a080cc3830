"""Cases with tensors of a device: the order of streams, and what the frontend does otherwise for them.
``FARANDOLE_FULL_MATRIX=1``: the whole table, too."""

import os

from tests.contract.torch import (
    alltoall,
    cases,
    device_uses,
    optimizer,
    state,
    streams,
    sync_batch_norm,
    types,
)
from tests.contract.world import Cases

# What the stand-in for PyTorch's CUDA does not have; a real device has all of it.
LEFT_OUT = (
    "sparse",  # sparse tensors
    "unknown_types_and_layouts",
    "what_lies_negated",  # views of complex tensors
    "the_sum_of_complex_numbers",
    "a_conjugate_that_is_not_in_memory",
    "forked_child",  # a child cannot use the driver of its parent
    "compiled",  # looks for a compiler for the device
    "shared_gradients-",  # in host memory only
)

CASES = Cases()
for module in (streams, device_uses, types, alltoall, state, optimizer, sync_batch_norm):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
if os.environ.get("FARANDOLE_FULL_MATRIX"):
    for name, case in cases.CASES.table.items():
        CASES.table.setdefault(name, case)
if os.environ.get("FARANDOLE_TEST_DEVICE") != "cuda":
    for name in [name for name in CASES if any(each in name for each in LEFT_OUT)]:
        del CASES.table[name]
