"""What rank 0 tells the others through channels that are not ours: a card, or an error that says which."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import socket

from fuzz.values import ANYTHING, DEEP, changed
from hypothesis import given
from hypothesis import strategies as st

from horovod.bootstrap.network.routes import Route
from horovod.bootstrap.place import pmi
from horovod.bootstrap.store.meeting import _decode
from horovod.bootstrap.trust import unix
from horovod.errors import RendezvousError

CARD = {"at": [["127.0.0.1", 4711], ["fd00::1", 4711]], "job": "0123456789abcdef", "check": "ab" * 16}
HERE = {**CARD, "at": [["@farandole-0123456789abcdef", 0]]}
contents = st.one_of(
    changed(CARD).map(json.dumps),
    changed(HERE).map(json.dumps),
    ANYTHING.map(json.dumps),
    DEEP,
    st.text(max_size=40),
)
cards = st.one_of(
    contents.map(lambda text: base64.urlsafe_b64encode(text.encode(errors="replace")).decode().rstrip("=")),
    st.text(max_size=60),
)


@given(text=cards)
def test_a_text_is_a_card_or_nonsense(text: str) -> None:
    try:
        card = _decode(text, "pmi")
    except RendezvousError:
        return
    for host, port in card["at"]:
        if unix.is_name(host):
            assert Route(host, port).address == "\0" + host[1:]
            assert port == unix.NO_PORT
        else:
            ipaddress.ip_address(host)
            assert 0 < port < 65536
    assert card["job"].isascii()
    assert card["check"].isascii()


words = st.one_of(
    st.sampled_from(
        [
            b"cmd=response_to_init rc=0",
            b"cmd=my_kvsname rc=0 kvsname=K",
            b"cmd=my_kvsname rc=0",
            b"cmd=put_result rc=0",
            b"cmd=barrier_out",
            b"cmd=get_result rc=0 value=V",
            b"cmd=get_result rc=0",
            b"cmd=get_result rc=1",
            b"",
        ]
    ),
    st.binary(max_size=30),
)
GOOD = [
    b"cmd=response_to_init rc=0",
    b"cmd=my_kvsname rc=0 kvsname=K",
    b"cmd=barrier_out",
    b"cmd=get_result rc=0 value=V",
]


@given(
    lines=st.lists(words, max_size=5),
    kept=st.integers(0, 4),
    ending=st.sampled_from([b"\n", b"", b"x" * 70_000]),
)
def test_a_process_manager_that_says_anything(lines: list[bytes], kept: int, ending: bytes) -> None:
    """It says everything at once and leaves; ``kept`` answers are right."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\n".join([*GOOD[:kept], *lines]) + ending)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(RendezvousError):
            assert isinstance(pmi.exchange({"PMI_FD": str(ours.fileno())}, "", 5.0), str)
