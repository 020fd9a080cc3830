"""Cases with tensors of a device for copies between peers: the order of streams, and what moves bytes."""

from tests.contract.torch import device_cases
from tests.contract.world import Cases

CASES = Cases()
for name, case in device_cases.CASES.table.items():
    if name.startswith("streams-") or any(moved in name for moved in ("alltoall", "gather", "broadcast")):
        CASES.add_as(name, case)
