"""All cases of `horovod.keras` with Keras 3, so that one job per framework runs them."""

import os
import sys

from tests.contract.keras import (
    callbacks,
    elastic_state,
    fit,
    mixed_compression,
    optimizer,
    sync_batch_norm,
    values,
)
from tests.contract.world import Cases

if os.environ.get("KERAS_BACKEND") in {"torch", "jax"}:
    # Neither Keras nor we need it there, and Keras would load it if it can.
    sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type]

FRAMEWORK = "horovod.keras"

CASES = Cases()
for module in (values, optimizer, fit, callbacks, elastic_state, mixed_compression, sync_batch_norm):
    for name, case in module.CASES.table.items():
        CASES.add_as(name, case)
