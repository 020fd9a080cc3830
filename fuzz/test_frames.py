"""Frames of JSON: what a stream of any bytes, cut anywhere, is read as."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from horovod.bootstrap.store.messages import FrameError, FrameReader, SharedBody, encode

LIMIT_BYTES = 1 << 12

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
messages = st.dictionaries(st.text(max_size=4), json_values, max_size=3)
bodies = st.one_of(
    st.binary(max_size=200),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.integers(0, 3000).map(lambda depth: b'{"a":' + b"[" * depth),
    st.integers(0, 6000).map(lambda digits: b'{"a":' + b"9" * digits + b"}"),
    st.sampled_from([b"", b"{", b'{"a":NaN}', b'{"\xff":1}', b'\xef\xbb\xbf{"a":1}', b'{"a":1}{"b":2}']),
)


def read(
    stream: bytes, cuts: list[int], limit_bytes: int = LIMIT_BYTES, *, inflates: bool = False
) -> tuple[list[dict[str, Any]], bool]:
    """What arrived, and whether the stream turned out to be malformed."""
    reader = FrameReader(limit_bytes, inflates=inflates)
    found: list[dict[str, Any]] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    try:
        for begin, end in itertools.pairwise(edges):
            found.extend(reader.feed(stream[begin:end]))
    except FrameError:
        return found, True
    return found, False


@given(sent=st.lists(messages, max_size=3), cuts=st.lists(st.integers(0, 1 << 16), max_size=8))
def test_frames_arrive_as_they_were_sent_however_they_are_cut(
    sent: list[dict[str, Any]], cuts: list[int]
) -> None:
    stream = b"".join(encode(message, LIMIT_BYTES) for message in sent)
    assert read(stream, cuts) == (sent, False)


@given(stream=st.binary(max_size=400), cuts=st.lists(st.integers(0, 1 << 16), max_size=8))
def test_any_bytes_are_frames_or_nonsense_wherever_they_are_cut(stream: bytes, cuts: list[int]) -> None:
    assert read(stream, cuts) == read(stream, [])


@given(body=bodies, cuts=st.lists(st.integers(0, 1 << 16), max_size=4))
def test_a_body_is_an_object_or_nonsense(body: bytes, cuts: list[int]) -> None:
    stream = struct.pack(">I", len(body)) + body
    found, malformed = read(stream, cuts)
    assert malformed or len(found) == 1
    assert all(isinstance(message, dict) for message in found)
    assert not (malformed and found)


@given(
    values=st.lists(json_values, max_size=4),
    times=st.sampled_from([1, 300, 3000]),
    numbers=st.lists(st.integers(0, 1 << 62), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=8),
)
def test_a_body_that_many_share_arrives_in_each_answer(
    values: list[Any], times: int, numbers: list[int], cuts: list[int]
) -> None:
    body = SharedBody.of(json.dumps(values * times).encode())
    frames = [body.frame(b'{"id":%d,"ok":' % number, b"}") for number in numbers]
    assert all(frame[1] is body.blocks for frame in frames)
    stream = b"".join(itertools.chain.from_iterable(frames))
    expected = [{"id": number, "ok": values * times} for number in numbers]
    assert read(stream, cuts, 1 << 24, inflates=True) == (expected, False)
    if body.deflated:  # nobody else reads it as something else
        assert read(stream, cuts, 1 << 24) == ([], True)


def deflated(text: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(text) + deflate.flush()


@given(
    body=st.one_of(
        st.binary(max_size=200),
        bodies.map(deflated),
        bodies.map(lambda text: deflated(text)[:-1]),
        bodies.map(lambda text: deflated(text) + b"more"),
        st.just(deflated(b'{"a":"' + b"x" * (LIMIT_BYTES << 8) + b'"}')),
    ),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_a_deflated_body_is_an_object_or_nonsense(body: bytes, cuts: list[int]) -> None:
    stream = struct.pack(">I", len(body) | 1 << 31) + body
    found, malformed = read(stream, cuts, inflates=True)
    assert malformed or len(found) == 1
    assert all(isinstance(message, dict) for message in found)
    assert not (malformed and found)


def test_what_inflates_beyond_the_limit_is_refused_before_it_is_whole() -> None:
    bomb = deflated(b"x" * (1 << 28))
    assert len(bomb) < 1 << 19
    began = read(struct.pack(">I", len(bomb) | 1 << 31) + bomb, [], 1 << 19, inflates=True)
    assert began == ([], True)
