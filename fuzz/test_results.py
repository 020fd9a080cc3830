"""What comes home from ranks of other hosts: values, exceptions and reports, or an error.

Making a value takes no more memory than a small multiple of its bytes.
"""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from fuzz.values import ANYTHING, DEEP, changed, kept
from hypothesis import given
from hypothesis import strategies as st

from horovod.errors import HorovodError, LaunchError, WorkerFailed
from horovod.launch.calls.functions import explain_failure, result_of
from horovod.launch.calls.pickles import pack
from horovod.launch.calls.plain import pack_plain, plain_error, unpack_plain
from horovod.launch.external.messages import (
    RankArrival,
    RankEnd,
    RankInstructions,
    fetch,
    ranks_in,
    said,
    signal_of,
    understood,
)
from horovod.launch.placement.hosts import Slot

MAGIC = b"faran\x00\x05\x02"
VALUES: list[Any] = [
    [1, 2.5, None, True, "x", 1 << 70, 1j, b"ab", bytearray(b"c"), (1, {"k": [2]})],
    {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(2), "c": np.array(["2020-01-01"], "M8[D]")},
    (True, np.zeros((0, 3), ">i2")),
    (False, ("ValueError", ("words", 3), "Traceback ...\n", b"")),
    (False, ("OSError", (2, "x"), "", b"")),
    (False, ("UnicodeDecodeError", ("utf-8", b"x", 0, 1, "y"), "", b"")),
    (False, ("ExceptionGroup", ("several", []), "", b"")),
]


def text_and_buffers(value: Any) -> tuple[Any, bytes]:
    data = b"".join(pack_plain(value))
    (size,) = struct.unpack_from("<Q", data, len(MAGIC))
    return json.loads(data[16 : 16 + size]), data[16 + size :]


KEPT = kept("results")
PACKED = [text_and_buffers(value) for value in VALUES]


@st.composite
def pickled_bytes(draw: st.DrawFn) -> bytearray:
    """A value whose description, size or buffers have been changed."""
    text, buffers = draw(st.sampled_from(PACKED))
    written = draw(
        changed(text).map(lambda value: json.dumps(value).encode())
        | ANYTHING.map(lambda value: json.dumps(value).encode())
        | DEEP.map(str.encode)
        | st.sampled_from(KEPT)
        | st.sampled_from([b'{"list":', b'{"tuple":']).map(lambda one: one * 20_000)
        | st.binary(max_size=60)
    )
    size = draw(
        st.just(len(written)) | st.integers(0, len(written) + 3) | st.sampled_from([1 << 40, (1 << 64) - 1])
    )
    buffers = draw(st.just(buffers) | st.binary(max_size=80))
    return bytearray(MAGIC + struct.pack("<Q", size) + written + buffers)


@pytest.mark.once
@pytest.mark.parametrize("succeeded", [False, True])
def test_results_that_are_kept(succeeded: bool) -> None:
    for text in KEPT:
        check_result(bytearray(MAGIC + struct.pack("<Q", len(text)) + text + bytes(64)), succeeded)


@given(data=pickled_bytes(), succeeded=st.booleans())
def test_a_result_is_a_value_or_nonsense(data: bytearray, succeeded: bool) -> None:
    check_result(data, succeeded)


def check_result(data: bytearray, succeeded: bool) -> None:
    tracemalloc.start()
    try:
        unpack_plain(memoryview(data))
    except LaunchError as error:
        shown(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100 * len(data) + (1 << 20)
    try:
        if succeeded:
            result_of(data, 1, trusted=False)
            return
        failure = WorkerFailed("rank 1 failed", rank=1)
        explain_failure(failure, data, trusted=False)
        shown(failure)
        if failure.__cause__ is not None:
            shown(failure.__cause__)
    except LaunchError as error:
        shown(error)


def shown(error: BaseException) -> None:
    """A terminal that shows it obeys nothing in it, and it is not endless."""
    text = str(error)
    assert len(text) < 200_000
    assert all(each.isprintable() or each in "\n\t" for each in text)


@given(value=ANYTHING)
def test_whatever_json_can_say_makes_the_way_there_and_back(value: Any) -> None:
    back = unpack_plain(memoryview(bytearray(b"".join(pack_plain(value)))))
    assert repr_of(back) == repr_of(value)
    name, arguments = plain_error(ValueError(value))
    assert name == "ValueError"
    assert repr_of(arguments) == repr_of((value,))


def repr_of(value: Any) -> str:
    """Of numbers with too many digits for ``repr``, too."""
    return repr(value) if not isinstance(value, int) else hex(value)


SLOT = Slot("b", 1, 2, 0, 1, 1, 2)
ACCOUNTS: list[Any] = [
    RankArrival("b", 2),
    RankInstructions(SLOT, 5.0, 1.0, 1, False, True, "/out"),
    RankEnd(-9, "was killed", 0, ("last", "lines"), told=True, ended_by_launcher=True, result_parts=3),
]


@given(
    kind=st.sampled_from([RankArrival, RankInstructions, RankEnd]),
    value=st.sampled_from(ACCOUNTS).map(said).flatmap(changed) | ANYTHING,
)
def test_an_account_is_one_or_nonsense(kind: Any, value: Any) -> None:
    try:
        account = understood(kind, value, "rank 1")
    except LaunchError as error:
        shown(error)
        return
    assert understood(kind, json.loads(json.dumps(said(account))), "rank 1") == account
    match account:
        case RankArrival(host=host) | RankInstructions(slot=Slot(hostname=host)):
            assert host.isprintable()
            assert not host.startswith("-")
        case RankEnd(exit_code=code, because=because, result_parts=parts):
            assert -128 < code < 256
            assert because is None or because >= 0
            assert 0 <= parts <= 4096


@given(value=ANYTHING, book=st.dictionaries(st.sampled_from(["0", "1", "7", "-1", "x", ""]), ANYTHING))
def test_orders_that_end_a_job(value: Any, book: dict[str, Any]) -> None:
    assert 0 < signal_of(value) <= 64
    assert 0 < signal_of({"signum": value}) <= 64
    assert set(ranks_in(book, 2)) <= {0, 1}


class Store:
    """In place of a client of the store."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def get(self, key: str, _: float) -> Any:
        return self.parts[int(key.rpartition("/")[2])]


GOOD = base64.b64encode(b"".join(pack([1, "x"]))).decode()
parts = st.just(GOOD) | ANYTHING | st.text(max_size=30) | st.just(GOOD[:-3]) | st.just(GOOD + "\n")


@given(left=st.lists(parts, max_size=3))
def test_a_parcel_in_the_store_is_bytes_or_nonsense(left: list[Any]) -> None:
    try:
        data = fetch(Store(left), "result/1/", len(left), "rank 1")  # type: ignore[arg-type]
    except HorovodError as error:
        shown(error)
        return
    assert data == b"".join(base64.b64decode(part) for part in left)
