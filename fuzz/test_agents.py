"""What comes out of an ssh client: news of a host, or the end of that host with a reason."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from typing import Any

from fuzz.values import ANYTHING, DEEP, changed, kept
from hypothesis import given
from hypothesis import strategies as st

from horovod.errors import LaunchError
from horovod.launch.agent.terms import MARK
from horovod.launch.agent_client.messages import to_event
from horovod.launch.agent_client.speech import MOST_PIECE_BYTES, News, NoDirectory, Speech
from horovod.launch.agent_client.ssh_command import explain, may_pass
from horovod.launch.contracts.events import Event, Exited, Finished, Gone, Refused

MESSAGES: list[dict[str, Any]] = [
    {"event": "hello", "host": "b", "machine": "x", "cores": 2, "python": "p", "connection": "10.0.0.1 1"},
    {"event": "started", "rank": 0, "pid": 11},
    {"event": "output", "rank": 0, "stream": "stdout", "size": 3},
    {"event": "exited", "rank": 0, "exit_code": -9},
    {"event": "refused", "rank": 0, "errno": 2},
    {"event": "exited", "rank": 0, "exit_code": -15, "told": True},
    {"event": "said", "rank": 0, "line": "{}"},
    {"event": "stopped", "rank": 0},
    {"event": "continued", "rank": 0},
    {"event": "few_devices", "rank": 0, "devices": 1, "ranks": 2},
    {"event": "left_behind", "processes": 1},
    {"event": "left_behind", "processes": 1, "rank": 0},
    {"event": "gone", "rank": 0, "survivors": [12]},
    {"event": "no_directory", "errno": 2},
    {"event": "beat"},
    {"event": "finished", "survivors": []},
]
messages = st.sampled_from(MESSAGES).flatmap(changed)
KEPT = kept("agents")
lines = st.one_of(
    st.sampled_from(KEPT),
    messages.map(lambda message: json.dumps(message).encode()),
    ANYTHING.map(lambda value: json.dumps(value).encode()),
    DEEP.map(str.encode),
    st.integers(4000, 5000).map(lambda digits: b'{"event":"started","rank":' + b"9" * digits + b"}"),
    st.binary(max_size=60),
)
WORDS = [
    b"Permission denied (publickey).",
    b"ssh: connect to host b port 22: Connection refused",
    b"kex_exchange_identification: read: Connection reset by peer\r",
    b"\x1b]52;c;Zm9v\x07",
    b"@@@@@@ UNPROTECTED PRIVATE KEY FILE",
    b"\xc2\x9b2J",
    b"",
]
BANNERS = [
    b"Welcome\n",
    b"Last login: now\n\n",
    b"\x1b]0;title\x07",
    b"\r\n",
    b"\nfarandole",
    MARK[:-1],
    MARK[1:],
    b"\xff" * 3000,
    b"x" * 9000,
    b'{"event":"finished","survivors":[]}\n',
]
shells = st.binary(max_size=40) | st.lists(st.sampled_from(BANNERS), max_size=6).map(b"".join)
"""What may stand before the mark: banners, garbage, lines without an end, half a mark."""


def understood(event: Event) -> None:
    match event:
        case Exited(exit_code=code):
            assert -128 < code < 256
        case Refused(errno=errno):
            assert 0 < errno < 4096
        case Finished(survivors) | Gone(survivors=survivors):
            assert all(type(one) is int for one in survivors)


@given(message=messages | ANYTHING)
def test_a_message_is_an_event_or_unknown(message: Any) -> None:
    with contextlib.suppress(LaunchError):
        understood(to_event(message))


@given(
    status=st.integers(-64, 255),
    said=st.binary(max_size=300)
    | st.lists(st.sampled_from(WORDS), max_size=8).map(b"\n".join)
    | st.just(b"\xff" * 5000),
)
def test_what_ssh_says_last_is_quoted_as_text_in_one_line(status: int, said: bytes) -> None:
    text = said.decode("utf-8", "replace")
    quoted = explain(status, text)
    assert quoted.isprintable()
    assert len(quoted) < 7 * len(text) + 300
    assert isinstance(may_pass(status, text), bool)


class Heard:
    """What comes of a speech."""

    def __init__(self) -> None:
        self.answers = 0
        self.news: list[News] = []

    def answered(self) -> None:
        self.answers += 1

    def printed(self, rank: int, stream: str, data: bytes) -> None:
        if (rank, stream) not in {(0, "stdout"), (0, "stderr")}:
            raise KeyError((rank, stream))
        assert len(data) <= MOST_PIECE_BYTES

    def dropped(self, size_bytes: int) -> None:
        raise AssertionError(f"{size_bytes} bytes of a rank that is gone, of an agent that nobody attached")


@given(
    said=st.lists(lines, max_size=6),
    before=shells,
    cuts=st.lists(st.integers(0, 1 << 12), max_size=4),
)
def test_an_agent_that_says_anything(said: list[bytes], before: bytes, cuts: list[int]) -> None:
    heard = Heard()
    speech = Speech(heard.answered, heard.news.append, heard.printed, heard.dropped)
    speech.expect([0], 1 << 20)
    stream = before + MARK + b"\n".join([*said, b""])
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    began = time.monotonic()
    for begin, end in itertools.pairwise(edges):
        try:
            speech.take_in(stream[begin:end])
        except (LaunchError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # what `Connection` takes as the end of the host
    assert time.monotonic() - began < 10.0
    assert heard.answers == 1
    for at, news in enumerate(heard.news):
        if isinstance(news, NoDirectory):
            assert 0 < news.errno < 4096
        if isinstance(news, Finished):
            assert at == len(heard.news) - 1  # its last word
