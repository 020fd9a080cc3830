"""Results of other hosts: what is plain arrives as it was, and nothing that they send runs here."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.errors import LaunchError, WorkerFailed
from horovod.launch.calls.functions import explain_failure, result_of
from horovod.launch.calls.pickles import pack
from horovod.launch.calls.plain import NotPlain, is_plain, pack_plain, unpack_error, unpack_plain

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


class Bomb:
    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f"touch {self._canary}",)


def there_and_back(value: object) -> Any:
    return unpack_plain(memoryview(bytearray(b"".join(pack_plain(value)))))


@settings(max_examples=200, deadline=None)
@given(PLAIN)
def test_plain_values_arrive_as_they_were(value: object) -> None:
    back = there_and_back(value)
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize("dtype", ["?", "i1", ">i4", "u8", "f2", "f8", "c16", "S3", "U2", "M8[s]"])
def test_arrays_and_scalars_arrive_as_they_were(dtype: str) -> None:
    for array in (np.zeros((), dtype), np.zeros((0, 3), dtype), np.arange(6).astype(dtype).reshape(2, 3).T):
        back = there_and_back([array, array.sum() if dtype == "f8" else 1])[0]
        assert (back.dtype, back.shape, back.tolist()) == (array.dtype, array.shape, array.tolist())
        back[...] = back  # it can be written
    number = there_and_back(np.float32(1.5))
    assert (type(number), number) == (np.float32, 1.5)


def test_what_is_not_plain_is_named() -> None:
    for value in (object(), {1: {2}}, np.array([object()]), lambda: 0):
        with pytest.raises(NotPlain):
            pack_plain([value])
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotPlain, match="nested"):
        pack_plain(endless)


def test_a_malicious_host_runs_nothing_in_the_launcher(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    frames = [b"".join(pack((True, Bomb(canary)))), pickle.dumps(Bomb(canary))]
    for frame in frames:
        with pytest.raises(LaunchError, match="rank 3, which runs on another host"):
            result_of(bytearray(frame), 3, trusted=False)
    bomb = b"".join(pack(Bomb(canary)))
    failure = WorkerFailed("rank 3 failed", rank=3, host="b", exit_code=1)
    said = b"".join(pack_plain((False, ("ValueError", ("words",), "Traceback", bomb))))
    explain_failure(failure, bytearray(said), trusted=False)
    assert isinstance(failure.__cause__, ValueError)
    assert str(failure).endswith("Traceback")
    for name in ("eval", "exec", "__import__", "SystemExit", "open", "os.system"):
        assert isinstance(unpack_error(name, (f"touch {canary}",)), LaunchError)
    assert not canary.exists()
    result_of(bytearray(frames[0]), 3, trusted=True)  # the bomb is one
    assert canary.exists()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_do_more_than_be_refused(said: bytes, framed: bool) -> None:
    data = b"faran\x00\x05\x02" + len(said).to_bytes(8, "little") + said if framed else said
    try:
        unpack_plain(memoryview(bytearray(data)))
    except LaunchError:
        pass
    assert is_plain(memoryview(data)) == data.startswith(b"faran\x00\x05\x02")
