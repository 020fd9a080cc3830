"""NumPy arrays as the core sees them."""

from __future__ import annotations

import numpy as np
import pytest

from horovod import _core
from horovod.collectives.numpy_frontend import NumpyFrontend
from horovod.errors import InvalidArgumentError

FRONTEND = NumpyFrontend()


TYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_described_by_where_it_lies(name: str) -> None:
    array = np.ones((2, 3), name)
    address = array.ctypes.data
    assert FRONTEND.describe(array) == (address, address, getattr(_core, name.upper()), (2, 3))
    assert FRONTEND.describe(array, 0) == (address, 0, getattr(_core, name.upper()), (2, 3))


def test_bfloat16_of_the_package_that_has_it() -> None:
    types = pytest.importorskip("ml_dtypes")
    assert FRONTEND.describe(np.ones(2, types.bfloat16))[2] == _core.BFLOAT16


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ([1.0], "Expected a numpy.ndarray, got list"),
        (np.ones((2, 3)).T, r"has shape \[3, 2\] and strides \[8, 24\]"),
        (np.ones(2, np.clongdouble), "type complex256 is not supported"),
        (np.ones(2, ">f4"), "type >f4 has its bytes in the order of other machines"),
    ],
)
def test_what_cannot_be_described_is_refused(array: object, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        FRONTEND.describe(array)  # type: ignore[arg-type]


def test_scalars_and_nothing_have_shapes() -> None:
    assert FRONTEND.describe(np.array(1.0))[3] == ()
    assert FRONTEND.describe(np.ones((0, 4)))[3] == (0, 4)
    assert FRONTEND.contiguous_copy(np.ones((2, 3)).T).flags.c_contiguous
    assert FRONTEND.to_bytes(FRONTEND.from_bytes(bytearray(b"abc"))) == b"abc"
    assert FRONTEND.to_integers(FRONTEND.from_integers([3, -1])) == [3, -1]
