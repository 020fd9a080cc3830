"""All cases of `horovod.torch`, so that one job per world runs them."""

from tests.contract.torch import collectives, errors, gradients, lifecycle, optimizer, state
from tests.contract.world import Cases

CASES = Cases()
for module in (collectives, gradients, errors, state, optimizer, lifecycle):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
