"""The cases of devices, but those that NCCL's additions differ in: it adds before it divides, so a half type
must have the sum, too; and its bits are not those of what is staged."""

from tests.contract.torch import device_cases
from tests.contract.world import Cases

_SUMS = (
    "averages_whose_sum_fits_no_float16",
    "averages_of_half_types_lose_no_range",
    "reduce-the_bits_are_those_of_an_allreduce",
)

CASES = Cases()
for name, case in device_cases.CASES.table.items():
    if not name.endswith(_SUMS):
        CASES.add_as(name, case)
