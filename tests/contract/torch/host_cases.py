"""All cases, but only those ways to call a collective in which the way of the bytes may matter: the others
differ in the binding, which knows nothing of hosts. Of the ways to touch gradients, those in which ranks
bring different ones.
"""

from tests.contract.torch import bytes, cases
from tests.contract.world import Cases

_OF_WAYS = tuple(f"{module.__name__.rsplit('.', 1)[-1]}-" for module in bytes.MODULES)

_TOUCHED = "touched_gradients-"
_TOUCHED_APART = (f"{_TOUCHED}heads_by_rank_in_groups", f"{_TOUCHED}heads_by_rank_sgd", f"{_TOUCHED}removing")

CASES = Cases()
for name, case in cases.CASES.table.items():
    if name.startswith(_TOUCHED) and not name.startswith(_TOUCHED_APART):
        continue
    if name in bytes.CASES.table or not name.startswith(_OF_WAYS):
        CASES.add_as(name, case)
