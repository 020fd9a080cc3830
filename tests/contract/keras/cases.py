"""All cases of `horovod.keras` with Keras 3, so that one job per framework runs them."""

import os
import sys

from tests.contract.keras import (
    callbacks,
    elastic_state,
    fit,
    mixed_compression,
    optimizer,
    replicas,
    sync_batch_norm,
    touched_gradients,
    values,
)
from tests.contract.world import Cases

if os.environ.get("KERAS_BACKEND") in {"torch", "jax"}:
    # Neither Keras nor we need it there, and Keras would load it if it can.
    sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type]

FRAMEWORK = "horovod.keras"

CASES = Cases()
MODULES = (
    values,
    optimizer,
    touched_gradients,
    fit,
    callbacks,
    elastic_state,
    mixed_compression,
    sync_batch_norm,
    replicas,
)
for module in MODULES:
    for name, case in module.CASES.table.items():
        CASES.add_as(name, case)
