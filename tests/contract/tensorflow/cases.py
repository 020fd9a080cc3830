"""All cases of `horovod.tensorflow`, so that one job per world runs them."""

from tests.contract.tensorflow import collectives, data_sharding, errors, gradients, state
from tests.contract.world import Cases

FRAMEWORK = "horovod.tensorflow"

CASES = Cases()
for module in (collectives, gradients, state, errors, data_sharding):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
