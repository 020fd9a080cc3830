"""The native description of tensors is that of the frontend's own functions, whatever the tensor. PyTorch's
exchange table tells it, and the methods of tensors, as older versions have no table.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from horovod import _core
from horovod.torch import frontend
from horovod.torch.frontend import TorchFrontend


class Renamed(torch.Tensor):
    """Of a class of its own."""


class Denying(torch.Tensor):
    """Says of itself what is not so."""

    def is_contiguous(self, *_: Any, **__: Any) -> bool:
        return False


def resized() -> torch.Tensor:
    made = torch.ones(4)
    made.resize_(2, 3)
    return made


DTYPES = [each for each in vars(torch).values() if isinstance(each, torch.dtype)]
"""Those that are not supported as well. Some of less than a byte look like bytes in the table."""

TENSORS: dict[str, Callable[[], Any]] = {
    "a vector": lambda: torch.arange(5.0),
    "one element": lambda: torch.ones(1),
    "no dimensions": lambda: torch.tensor(3.0),
    "one row": lambda: torch.ones(1, 4),
    "one row of columns": lambda: torch.ones(4, 1).t(),
    "one row that is not contiguous": lambda: torch.ones(4, 3)[:, :1].t(),
    "no elements": lambda: torch.ones(0),
    "no columns": lambda: torch.ones(3, 0),
    "one row without columns": lambda: torch.ones(1, 0),
    "transposed": lambda: torch.ones(3, 2).t(),
    "every second": lambda: torch.ones(6)[::2],
    "a part": lambda: torch.ones(6)[2:4],
    "expanded": lambda: torch.ones(1).expand(3),
    "negative, one element": lambda: torch.tensor([1 + 2j]).conj().imag,
    "negative, no dimensions": lambda: torch.tensor(1 + 2j).conj().imag,
    "negative, one row": lambda: torch._neg_view(torch.ones(1, 3)),
    "negative, many": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "sparse": lambda: torch.ones(1).to_sparse(),
    "sparse, two": lambda: torch.eye(2).to_sparse(),
    "of a class": lambda: torch.ones(3).as_subclass(Renamed),
    "of a class that denies": lambda: torch.ones(3).as_subclass(Denying),
    "of a class that denies, one": lambda: torch.ones(1).as_subclass(Denying),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "resized": resized,
    "without memory": lambda: torch.ones(3, device="meta"),
    "no tensor": lambda: [1.0, 2.0],
    "None": lambda: None,
    "a shape alone": lambda: type("Shaped", (), {"shape": (1, 2)})(),
    "a shape of words": lambda: type("Shaped", (), {"shape": ("1",)})(),
    "a shape beyond 64 bits": lambda: type("Shaped", (), {"shape": (1 << 70,)})(),
    "a dtype without a hash": lambda: type("Typed", (torch.Tensor,), {"dtype": []})(torch.ones(2)),
    "complex of 16 bits": lambda: torch.ones(3, dtype=torch.complex32),
    **{str(dtype): functools.partial(torch.empty, 3, dtype=dtype) for dtype in DTYPES},
    **{f"{dtype}, one": functools.partial(torch.empty, 1, dtype=dtype) for dtype in DTYPES},
}


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        return type(error), str(error)


@pytest.fixture(params=["table", "methods"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TorchFrontend:
    if request.param == "methods":
        monkeypatch.setattr(frontend, "_EXCHANGE", None)
    else:
        assert frontend._EXCHANGE is not None, "PyTorch has had the table since 2.10"
    return TorchFrontend()


@pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:Sparse invariant", "ignore:torch.quantize")
@pytest.mark.parametrize("name", TENSORS)
def test_it_says_what_the_frontend_says(native: TorchFrontend, name: str) -> None:
    value = TENSORS[name]()
    for out in ((), (None,), (0,), (4096,)):
        assert outcome(native.describe, value, *out) == outcome(frontend._describe, value, *out)
    assert outcome(native.peek, value) == outcome(frontend._peek, value)


class Shrinks(TorchFunctionMode):
    """Makes a tensor smaller when somebody asks whether it is negative."""

    def __torch_function__(
        self, call: Any, _types: Any, given: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        answer = call(*given, **(named or {}))
        if call is torch.Tensor.is_neg:
            given[0].resize_(1)
        return answer


def test_the_shape_is_not_read_after_code_of_others_has_run(native: TorchFrontend) -> None:
    """Extents of more than five dimensions have memory of their own, which goes when they are changed."""
    shape = (1, 2, 2, 2, 2, 2, 2, 2)
    for _ in range(50):
        value = torch.ones(shape)
        with Shrinks():
            described = native.describe(value)
        assert described[3] in (shape, (1,))


def test_tensors_that_a_transformation_wraps_are_refused_as_ever(native: TorchFrontend) -> None:
    """They are of the class of all tensors, and have no memory."""
    said = []

    def looked_at(inner: torch.Tensor) -> torch.Tensor:
        said.append((outcome(native.describe, inner), outcome(frontend._describe, inner)))
        said.append((outcome(native.peek, inner), outcome(frontend._peek, inner)))
        return inner.sum()

    torch.func.vmap(looked_at)(torch.ones(2, 3))
    torch.func.grad(looked_at)(torch.ones(3))
    assert len(said) == 4
    for native_said, own in said:
        assert native_said == own


def test_a_tensor_that_shares_its_memory_until_it_is_written_gets_its_own(native: TorchFrontend) -> None:
    first = torch.ones(3)
    second = torch._lazy_clone(first)
    address = native.describe(second)[0]
    assert address == second.data_ptr() != first.data_ptr()


def test_the_shape_is_that_of_the_moment(native: TorchFrontend) -> None:
    value = torch.ones(6)
    assert native.describe(value)[3] == (6,)
    value.resize_(2, 3)
    assert native.describe(value)[3] == (2, 3)


@pytest.mark.parametrize("exchange", [frontend._EXCHANGE, None], ids=["table", "methods"])
def test_an_ordinary_tensor_needs_no_other_way(exchange: object) -> None:
    def otherwise(*_: Any) -> None:
        raise AssertionError("an ordinary tensor")

    describe = _core.HostDescriber(frontend._ORDINARY, otherwise, frontend._CLASSES, exchange).describe
    for value in (
        torch.ones(1),
        torch.tensor(3),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(3, requires_grad=True) * 2,
    ):
        address = value.data_ptr()
        assert describe(value) == (address, address, frontend._CODES[value.dtype], value.shape)
        assert describe(value, 0)[:2] == (address, 0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, ValueError])
def test_what_a_handler_of_a_signal_raises_is_not_swallowed(kind: type[BaseException]) -> None:
    class Interrupted:
        asked = 0

        @property
        def shape(self) -> tuple[int, ...]:
            self.asked += 1
            raise kind

    tensor = Interrupted()
    for call in (TorchFrontend().describe, TorchFrontend().peek):
        tensor.asked = 0
        with pytest.raises(kind):
            call(tensor)  # type: ignore[arg-type]
        assert tensor.asked == 1


class Tables:
    """A chain of exchange tables, as a library lays them out: the newest first."""

    def __init__(self, *majors: int) -> None:
        self._tables = [(ctypes.c_void_p * 7)() for _ in majors]
        newest = self._tables[0]
        # The first word has two numbers of 32 bits: the major version is the lower one here.
        for table, major, older in zip(self._tables, majors, [*self._tables[1:], None], strict=True):
            table[0] = major
            table[1] = ctypes.addressof(older) if older is not None else None
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = new(ctypes.addressof(newest), b"dlpack_exchange_api", None)


@pytest.mark.parametrize("majors", [(1,), (2,), (2, 1), (3, 2)], ids=str)
def test_a_table_without_that_function_or_of_another_version_is_not_used(majors: tuple[int, ...]) -> None:
    tables = Tables(*majors)
    describe = _core.HostDescriber(
        frontend._ORDINARY, frontend._describe, frontend._CLASSES, tables.capsule
    ).describe
    value = torch.ones(3)
    assert describe(value) == frontend._describe(value)


def test_of_several_versions_the_one_that_is_known_is_used() -> None:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tables = Tables(2, 1)
    tables._tables[0][1] = pointer(frontend._EXCHANGE, b"dlpack_exchange_api")

    def otherwise(*_: Any) -> None:
        raise AssertionError("the table of version 1 is there")

    # Without dtypes the methods would know none.
    describe = _core.HostDescriber({}, otherwise, frontend._CLASSES, tables.capsule).describe
    assert describe(torch.ones(3))[2:] == (_core.FLOAT32, (3,))


def test_another_capsule_is_no_table() -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        _core.HostDescriber({}, frontend._describe, (), torch.ones(1).__dlpack__())


def test_one_that_was_not_initialised_is_an_error() -> None:
    made = _core.HostDescriber.__new__(_core.HostDescriber)
    with pytest.raises(TypeError, match="__init__"):
        made.describe(torch.ones(1))


@pytest.mark.parametrize("arguments", [(), (1, 2, 3)])
def test_too_few_or_too_many_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match="a tensor"):
        TorchFrontend().describe(*arguments)
