"""Those cases in which the way of the bytes, or the number of ranks, may make a difference: what says whether
bytes move as they should, Adasum, ranks that join, and one optimizer.
"""

from tests.contract.torch import adasum, bytes, join, optimizer, replicas
from tests.contract.world import Cases

CASES = Cases()
CASES.table.update(bytes.CASES.table)
for module in (adasum, join, optimizer, replicas):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
