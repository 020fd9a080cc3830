"""All cases of `horovod.tensorflow`, so that one job per world runs them: importing it takes seconds."""

from tests.contract.tensorflow import (
    adasum_optimizer,
    aggregation,
    collectives,
    data_sharding,
    errors,
    gradients,
    local_tables,
    mixed_compression,
    replicas,
    state,
    sync_batch_norm,
    tape,
    touched_gradients,
    v1_optimizer,
)
from tests.contract.world import Cases

FRAMEWORK = "horovod.tensorflow"

CASES = Cases()
COLLECTIVES = (collectives, gradients, state, errors, data_sharding)
TRAINING = (
    tape,
    touched_gradients,
    v1_optimizer,
    aggregation,
    adasum_optimizer,
    mixed_compression,
    sync_batch_norm,
    local_tables,
    replicas,
)
for module in (*COLLECTIVES, *TRAINING):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
