"""The cases of optimizers, tapes and layers, so that one job per world runs them."""

from tests.contract.tensorflow import (
    adasum_optimizer,
    aggregation,
    mixed_compression,
    sync_batch_norm,
    tape,
    v1_optimizer,
)
from tests.contract.world import Cases

FRAMEWORK = "horovod.tensorflow"

CASES = Cases()
for module in (tape, v1_optimizer, aggregation, adasum_optimizer, mixed_compression, sync_batch_norm):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
