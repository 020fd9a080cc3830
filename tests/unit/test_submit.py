"""The one native call by which Python submits: what it takes, and what it refuses without a trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from horovod import _core
from horovod.collectives.numpy_frontend import NumpyFrontend
from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.runtime import lifecycle

MODES = {"asynchronous": _core.ASYNCHRONOUS, "awaited": _core.AWAITED, "blocking": _core.BLOCKING}
HOST = (_core.HOST, 0, 0)


@pytest.fixture
def engine() -> Iterator[_core.Engine]:
    """Of a world of one."""
    yield lifecycle.start(environ={}).engine
    lifecycle.stop()


@pytest.fixture
def values() -> np.ndarray:
    return np.ones(4, np.float32)


def submit(engine: _core.Engine, tensors: Any, kind: int = _core.ALLREDUCE, **changes: Any) -> Any:
    """Doubles the tensors."""
    how: dict[str, Any] = {
        "name": "x",
        "tensors": tensors,
        "op": _core.SUM,
        "prescale": 2.0,
        "postscale": 1.0,
        "root": 0,
        "process_set": 0,
        "mode": _core.AWAITED,
        "owners": None,
    }
    return engine.submit(kind, *(how | changes).values())


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, "kind", "kind must be an int, not str"),
        (0, 1.0, "kind must be an int, not float"),
        (3, 1 << 40, "op is too large"),
        (4, "2", "prescale must be a number"),
        (5, None, "postscale must be a number"),
        (4, 10**400, "prescale must be a number that fits a float, not int"),
        (6, 1 << 100, "root is too large"),
        (8, None, "mode must be an int, not NoneType"),
    ],
)
def test_arguments_of_another_kind_are_type_errors(
    place: int, value: Any, says: str, engine: _core.Engine, values: np.ndarray
) -> None:
    arguments: list[Any] = [_core.ALLREDUCE, "x", in_place(values), _core.SUM, 2.0, 1.0, 0, 0, _core.AWAITED]
    engine.wait(engine.submit(*arguments))
    arguments[place] = value
    with pytest.raises(TypeError, match=says):
        engine.submit(*arguments)


@pytest.mark.parametrize("count", [0, 8, 11])
def test_a_wrong_number_of_arguments_is_a_type_error(count: int, engine: _core.Engine) -> None:
    with pytest.raises(TypeError, match="9 or 10 arguments"):
        engine.submit(*([0] * count))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _core.Engine.submit(None, *([0] * 9))  # type: ignore[arg-type]


def in_place(values: np.ndarray) -> tuple[int, int, int, tuple[int, ...]]:
    return values.ctypes.data, values.ctypes.data, _core.FLOAT32, values.shape


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("length", range(4, 10))
def test_tensors_are_short_where_the_rest_is_nothing(
    length: int, mode: int, engine: _core.Engine, values: np.ndarray
) -> None:
    whole: tuple[Any, ...] = (*in_place(values), *HOST, [], 0)
    for tensors, factor in ((whole[:length], 2.0), ([whole[:length]], 4.0)):
        handle = submit(engine, tensors, mode=mode)
        assert (handle == 0) == (mode == _core.BLOCKING)
        if handle:
            assert engine.wait(handle) is None
        assert values.tolist() == [factor] * 4


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_results_that_the_engine_allocates_come_with_the_wait(
    mode: int, engine: _core.Engine, values: np.ndarray
) -> None:
    address, _, dtype, shape = in_place(values)
    received = np.zeros(1, np.int32)
    tensor = (address, 0, dtype, shape, *HOST, [3], received.ctypes.data)
    made = submit(engine, tensor, _core.ALLTOALL, mode=mode)
    if mode != _core.BLOCKING:
        made = engine.wait(made)
    assert isinstance(made, list)
    assert [NumpyFrontend().from_dlpack(capsule, values).tolist() for capsule in made] == [[1.0] * 3]
    assert received.tolist() == [3]
    if mode == _core.BLOCKING:  # and leave nothing behind
        with pytest.raises(ValueError, match="was not created or has been consumed"):
            engine.wait(1)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0), (5,), (2, 3, 4)], ids=str)
def test_results_have_their_shape_and_outlive_the_engine(shape: tuple[int, ...], values: np.ndarray) -> None:
    engine = lifecycle.start(environ={}).engine
    capsule = engine.empty(_core.FLOAT32, shape)
    lifecycle.stop()
    made = NumpyFrontend().from_dlpack(capsule, values)
    assert made.shape == shape
    assert np.add(made, 1.0).shape == shape  # it can be read
    assert made.flags.c_contiguous


def test_memory_of_results_goes_back_read_or_not(engine: _core.Engine, values: np.ndarray) -> None:
    def result() -> object:
        address, _, dtype, shape = in_place(values)
        made: list[object] = submit(engine, (address, 0, dtype, shape), _core.ALLGATHER, mode=_core.BLOCKING)
        return made[0]

    first = NumpyFrontend().from_dlpack(result(), values)
    address = first.ctypes.data
    del first
    for _ in range(3):
        result()  # nobody reads it
        assert NumpyFrontend().from_dlpack(result(), values).ctypes.data == address


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_kinds_without_tensors(mode: int, engine: _core.Engine) -> None:
    handle = submit(engine, None, _core.BARRIER, mode=mode)
    assert handle == 0 if mode == _core.BLOCKING else engine.wait(handle) is None
    assert engine.wait(submit(engine, None, _core.JOIN, mode=mode)) == 0


FOUR = (1, 1, _core.FLOAT32, (4,))
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (None, InvalidArgumentError, "at least one tensor"),
    "a string": ("four", TypeError, "the tuple of one, a list of tuples for a group, or None"),
    "no tuple": (list(FOUR), TypeError, "tensor 1 of 4: a tensor must be a tuple, not int"),
    "an empty tuple": ((), ValueError, "4 to 9 entries, not 0"),
    "too short": (FOUR[:3], ValueError, "4 to 9 entries, not 3"),
    "too long": ((*FOUR, *HOST, [], 0, 0), ValueError, "4 to 9 entries, not 10"),
    "no address": (("x", *FOUR[1:]), TypeError, "in must be an int, not str"),
    "a wide address": ((2**64, *FOUR[1:]), ValueError, "in is no address"),
    "no result": ((1, None, *FOUR[2:]), TypeError, "out must be an int, not NoneType"),
    "no dtype": ((1, 1, 99, (4,)), ValueError, "dtype 99 means nothing"),
    "negative dtype": ((1, 1, -1, (4,)), ValueError, "dtype -1 means nothing"),
    "a wide dtype": ((1, 1, 2**64, (4,)), ValueError, "dtype is too large"),
    "no shape": ((*FOUR[:3], 4), TypeError, "a shape must be a tuple, not int"),
    "a list as shape": ((*FOUR[:3], [4]), TypeError, "a shape must be a tuple, not list"),
    "a float extent": ((*FOUR[:3], (4.0,)), TypeError, "an extent must be an int, not float"),
    "more bytes than 64 bits count": (
        (*FOUR[:3], (1 << 40, 1 << 40)),
        ValueError,
        "more bytes than an address",
    ),
    "more bytes, fewer elements": ((*FOUR[:3], (1 << 62,)), ValueError, "more bytes than an address space"),
    "an extent beyond 64 bits": ((*FOUR[:3], (1 << 70,)), ValueError, "an extent is too large"),
    "a negative extent": ((*FOUR[:3], (2, -1)), ValueError, "an extent of -1 means nothing"),
    "too many extents": ((*FOUR[:3], (1,) * 65), ValueError, "a number of dimensions of 65 means nothing"),
    "no device": ((*FOUR, 99), ValueError, "device 99 means nothing"),
    "a negative device": ((*FOUR, 1, -1), ValueError, "device_index -1 means nothing"),
    "no stream": ((*FOUR, 1, 0, "x"), TypeError, "stream must be an int, not str"),
    "no splits": ((*FOUR, *HOST, 4), TypeError, "splits must be a list or a tuple, not int"),
    "a float split": ((*FOUR, *HOST, [4.0]), TypeError, "a split must be an int, not float"),
    "no counts": ((*FOUR, *HOST, [], "x"), TypeError, "received must be an int, not str"),
    "an empty group": ([], ValueError, "A group needs at least one tensor"),
    "no tuple in a group": ([FOUR, 7, FOUR], TypeError, "tensor 2 of 3: a tensor must be a tuple, not"),
    "a bad tuple in a group": ([FOUR, FOUR, FOUR[:2]], ValueError, "tensor 3 of 3: a tensor is .*, not 2"),
    "a bad extent in a group": ([FOUR, (*FOUR[:3], (-7,))], ValueError, "tensor 2 of 2: an extent of -7"),
    "no memory for the result": (
        (1, 0, *FOUR[2:]),
        InvalidArgumentError,
        "Tensor of allreduce.x has no memory for its result",
    ),
    "device memory": (
        (*FOUR, _core.CUDA, 1),
        HorovodInternalError,
        "Tensor of allreduce.x is on device CUDA 1",
    ),
    "device memory in a group": (
        [FOUR, (*FOUR, _core.XPU), FOUR],
        HorovodInternalError,
        "Tensor 2 of 3 of grouped_allreduce.x is on device XPU 0: XPU tensors are not supported yet; move "
        "the tensor to the CPU first",
    ),
    "device memory twice": (
        [(*FOUR, _core.CUDA), (*FOUR, _core.CUDA)],
        HorovodInternalError,
        "Tensor 1 of 2 of grouped_allreduce.x",
    ),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("tensors", "error", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_leaves_no_trace(
    tensors: Any,
    error: type[Exception],
    says: str,
    mode: int,
    engine: _core.Engine,
    values: np.ndarray,
) -> None:
    owner = object()
    seen = owner if tensors is None else tensors
    before = sys.getrefcount(owner), sys.getrefcount(seen)
    for _ in range(3):
        with pytest.raises(error, match=says):
            submit(engine, tensors, mode=mode, owners=owner)
    assert (sys.getrefcount(owner), sys.getrefcount(seen)) == before
    # Its names are free, alone and as a group, and this thread remembers nothing of it.
    for good, factor in ((in_place(values), 2.0), ([in_place(values)], 4.0)):
        engine.wait(submit(engine, good))
        assert values.tolist() == [factor] * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": 99}, "kind 99 means nothing"),
        ({"op": 6}, "op 6 means nothing"),
        ({"op": -1}, "op -1 means nothing"),
        ({"mode": 3}, "mode 3 means nothing"),
        ({"mode": -1}, "mode -1 means nothing"),
    ],
)
def test_numbers_that_mean_nothing(
    change: dict[str, Any], says: str, engine: _core.Engine, values: np.ndarray
) -> None:
    with pytest.raises(ValueError, match=says):
        submit(engine, in_place(values), **change)
    with pytest.raises(TypeError, match="A name is a str, or None"):
        submit(engine, in_place(values), name=b"x")


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_owners_are_held_until_it_is_over(mode: int, engine: _core.Engine, values: np.ndarray) -> None:
    owner = object()
    before = sys.getrefcount(owner)
    handle = submit(engine, in_place(values), mode=mode, owners=owner)
    if handle:
        assert sys.getrefcount(owner) == before + 1
        engine.wait(handle)
    assert sys.getrefcount(owner) == before
