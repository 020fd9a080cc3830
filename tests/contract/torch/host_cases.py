"""All cases, but only those ways to call a collective in which the way of the bytes may matter: the others
differ in the binding, which knows nothing of hosts.
"""

from tests.contract.torch import bytes, cases
from tests.contract.world import Cases

_OF_WAYS = tuple(f"{module.__name__.rsplit('.', 1)[-1]}-" for module in bytes.MODULES)

CASES = Cases()
for name, case in cases.CASES.table.items():
    if name in bytes.CASES.table or not name.startswith(_OF_WAYS):
        CASES.add_as(name, case)
