"""Those cases in which a world alone, or one of an odd number of ranks, may do something else: of collectives
all, but of a few types; of optimizers, tapes and layers what depends on the number of ranks."""

import os
import re

from tests.contract.tensorflow.cases import CASES as ALL
from tests.contract.tensorflow.cases import COLLECTIVES
from tests.contract.tensorflow.ways import MOVED
from tests.contract.world import Cases

FRAMEWORK = "horovod.tensorflow"

CASES = Cases()
OTHERWISE = re.compile(
    "members|unregistered|slices_are|adasum|power_of_two|alone|plain|elastic|parts|mask|dense"
)
OTHER_TYPES = {dtype.name for dtype in MOVED} - {"int64", "bfloat16", "float32", "bool"}


def differs(name: str) -> bool:
    module, case = name.split("-", 1)
    if any(module == of.__name__.rpartition(".")[2] for of in COLLECTIVES):
        return case.rpartition("_")[2] not in OTHER_TYPES
    return OTHERWISE.search(name) is not None


for name, case in ALL.table.items():
    if differs(name) or os.environ.get("FARANDOLE_FULL_MATRIX"):
        CASES.add_as(name, case)
