"""All cases of `horovod.torch`, so that one job per world runs them."""

from tests.contract.torch import (
    adasum,
    adasum_optimizer,
    alltoall,
    collectives,
    elastic_changes,
    elastic_state,
    errors,
    gradients,
    join,
    lifecycle,
    optimizer,
    optimizer_families,
    optimizer_loops,
    optimizer_sets,
    process_sets,
    reduce,
    reducescatter,
    replicas,
    shared_gradients,
    state,
    sync_batch_norm,
    timeline,
    touched_gradients,
    types,
)
from tests.contract.world import Cases

CASES = Cases()
for module in (
    collectives,
    alltoall,
    reduce,
    reducescatter,
    adasum,
    types,
    process_sets,
    join,
    gradients,
    errors,
    state,
    optimizer,
    optimizer_families,
    optimizer_loops,
    optimizer_sets,
    adasum_optimizer,
    shared_gradients,
    touched_gradients,
    sync_batch_norm,
    replicas,
    elastic_state,
    elastic_changes,
    timeline,
    lifecycle,
):
    for name, case in module.CASES.table.items():
        CASES.add_as(f"{module.__name__.rsplit('.', 1)[-1]}-{name}", case)
