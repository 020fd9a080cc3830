"""Public reports of users of this field, as cases in our own words: PyTorch (DDP, FSDP,
torchrun), Lightning, DeepSpeed, Ray, MPI and others. Each says what they ran into; here it must be right,
or an error that says what to do.

All cases of a framework run in one job of ranks; see `tests/contract/world.py`.
"""

from tests.contract.reported import layers, objects, optimizers, processes, tensors
from tests.contract.world import Cases

CASES = Cases()
for module in (objects, tensors, optimizers, layers, processes):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
