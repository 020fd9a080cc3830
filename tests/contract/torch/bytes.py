"""The cases that say whether a backend moves bytes as it should: every kind of operation, dtype and set, each
in one or two of the ways to call it.
"""

from tests.contract.torch import alltoall, collectives, process_sets, reduce, reducescatter
from tests.contract.world import Cases

_WAYS = ("allreduce_", "allgather_", "broadcast_", "reducescatter_", "alltoall_")


def _chosen(name: str) -> bool:
    return "blocking" in name or "grouped_in_place" in name or not name.startswith(_WAYS)


MODULES = (collectives, alltoall, reduce, reducescatter, process_sets)
CASES = Cases()
for module in MODULES:
    for name, case in module.CASES.table.items():
        if _chosen(name):
            CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
