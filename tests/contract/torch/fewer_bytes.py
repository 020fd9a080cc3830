"""The cases of `bytes.py` in fewer dtypes, for worlds that are slow or crowded."""

from tests.contract.torch import bytes as all_bytes
from tests.contract.world import Cases

_LEFT_OUT = ("_uint8", "_int8", "_int16", "_int32", "_bfloat16", "_float64")

CASES = Cases()
for name, case in all_bytes.CASES.table.items():
    if not name.endswith(_LEFT_OUT):
        CASES.add_as(name, case)
