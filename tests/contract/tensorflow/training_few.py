"""Those cases of `training` in which a world alone, or one of an odd number of ranks, does something else."""

import os
import re

from tests.contract.tensorflow import training
from tests.contract.world import Cases

FRAMEWORK = "horovod.tensorflow"

CASES = Cases()
OTHERWISE = re.compile(
    "members|unregistered|slices_are|adasum|power_of_two|alone|plain|elastic|parts|mask|dense"
)
for name, case in training.CASES.table.items():
    if OTHERWISE.search(name) or os.environ.get("RUEDA_FULL_MATRIX"):
        CASES.add_as(name, case)
