"""The sockets of a rank among strangers: who is expected gets in, whatever the others say."""

from __future__ import annotations

import itertools
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from horovod.bootstrap.trust.admission import Admission
from horovod.bootstrap.trust.conversation import Address, Conversation, Conversations, dial
from horovod.bootstrap.trust.handshake import (
    PROOF_BYTES,
    REPLY_BYTES,
    Dialer,
    Purpose,
    Role,
    store_purpose,
    world_digest,
)
from horovod.bootstrap.trust.session import TAG_BYTES, Session
from horovod.errors import AuthenticationError

KEY = bytes(range(32))
WORD = b"it is me"
WORLD = world_digest("job", "1")
EXPECTED = [Purpose(Role.DATA, 1, 0, index, WORLD) for index in range(3)]
UNEXPECTED = [
    Purpose(Role.DATA, 1, 0, 3, WORLD),
    store_purpose("job"),
    Purpose(Role.DATA, 1, 0, 0, world_digest("job", "2")),
]
IN_TIME_S = 5.0
"""A fraction of what a handshake may take: nobody has to wait until strangers run into their limit."""

MOST_PLACES = len(EXPECTED) + 256
MOST_STRANGERS = 400
"""More than there are places for, those that wait to be accepted not counted."""


@dataclass
class Stranger:
    """A connection of somebody who does not belong here."""

    connection: socket.socket
    dialer: Dialer | None = None
    gone: bool = False

    def say(self, data: bytes) -> None:
        try:
            self.connection.send(data)
        except OSError:
            self.gone = True  # it was dropped: as it should be

    def prove(self, answer: bytes) -> None:
        """Read the reply if there is one, and answer wrongly."""
        try:
            reply = self.connection.recv(REPLY_BYTES)
        except OSError:
            return
        if self.dialer is not None and len(reply) == REPLY_BYTES:
            try:
                right = self.dialer.answer(reply)
            except AuthenticationError:
                return  # it answers another hello, one that was said before on this connection
            self.say(bytes(a ^ b for a, b in zip(right, answer, strict=True)))

    def end(self, how: int) -> None:
        self.gone = True
        if how == 0:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == 1:
            try:
                self.connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # dropped
            return
        self.connection.close()


@dataclass
class Scene:
    """A rank that lets in, in one thread with everybody who comes."""

    family: int
    talks: Conversations
    listener: socket.socket
    strangers: list[Stranger] = field(default_factory=list)
    came: list[tuple[Purpose, Session, socket.socket]] = field(default_factory=list)
    let_in: dict[Purpose, tuple[Session, socket.socket]] = field(default_factory=dict)
    said: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = Admission(self.talks, KEY, EXPECTED, self._meet, "Rank 0")
        self.admission.start([self.listener])

    def _meet(self, connection: socket.socket, purpose: Purpose, session: Session) -> Conversation[None]:
        self.came.append((purpose, session, connection))
        yield from ()

    @property
    def address(self) -> Address:
        name = self.listener.getsockname()
        return "\0" + name[1:].decode() if isinstance(name, bytes) else (str(name[0]), int(name[1]))

    def turns(self, seconds: float) -> None:
        self.talks.run(lambda: False, time.monotonic() + seconds)

    def stranger(self) -> Stranger:
        connection = socket.socket(self.family, socket.SOCK_STREAM)
        connection.settimeout(IN_TIME_S)
        while True:
            try:
                connection.setblocking(False)
                connection.connect(self.address)
            except BlockingIOError:
                self.turns(0.001)
                if self.family == socket.AF_UNIX and self.admission.expects:
                    continue  # the backlog was full; who expects nobody accepts nobody
            break
        self.strangers.append(Stranger(connection))
        return self.strangers[-1]

    def expect(self, purpose: Purpose) -> None:
        """Somebody who is expected comes now."""
        self.talks.start(self._come(purpose))

    def _come(self, purpose: Purpose) -> Conversation[None]:
        connection, session = yield from dial(self.family, self.address, KEY, purpose)
        self.let_in[purpose] = session, connection

    def places(self) -> int:
        return len(self.admission._silent) + len(self.admission._greeted)

    def nobody_waits(self) -> bool:
        return self.places() == 0

    def all_in(self) -> bool:
        return len(self.came) == len(self.let_in) == len(EXPECTED)


def hello(kind: str, purpose: Purpose) -> tuple[bytes, Dialer | None]:
    if kind == "key":
        return Dialer(secrets.token_bytes(32), purpose).hello, None
    dialer = Dialer(KEY, purpose)
    return dialer.hello, dialer


who = st.integers(0, 1 << 16)
steps = st.one_of(
    st.tuples(st.just("come"), st.sampled_from([1, 2, 3] * 4 + [MOST_STRANGERS])),
    st.tuples(st.just("say"), who, st.binary(max_size=150)),
    st.tuples(st.just("say"), who, st.binary(max_size=60).map(lambda rest: b"faran\x00\x00\x03" + rest)),
    st.tuples(
        st.just("hello"),
        who,
        st.sampled_from(["key", "proof"]),
        st.sampled_from(EXPECTED + UNEXPECTED),
        st.lists(st.integers(0, 119), max_size=3),
        st.none() | st.tuples(st.integers(0, 119), st.integers(0, 7)),
    ),
    st.tuples(st.just("repeat"), who, who),
    st.tuples(
        st.just("prove"),
        who,
        st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES).filter(any),
    ),
    st.tuples(st.just("end"), who, st.integers(0, 2)),
    st.tuples(st.just("turn"), st.sampled_from([0.0, 0.001])),
    st.just(("expected",)),
)


ALL_IN = [("turn", 0.1)] * 3


def play(scene: Scene, step: tuple, left: list[Purpose]) -> None:  # type: ignore[type-arg]
    def someone(number: int) -> Stranger:
        there = [each for each in scene.strangers if not each.gone]
        return there[number % len(there)] if there else scene.stranger()

    match step:
        case ("come", count):
            for _ in range(count):
                scene.stranger()
        case ("say", number, data):
            someone(number).say(data)
        case ("hello", number, kind, purpose, cuts, flip):
            stranger = someone(number)
            data, stranger.dialer = hello(kind, purpose)
            if flip is None:
                scene.said.append(data)
            else:
                at, bit = flip
                data = (
                    data[: at % len(data)]
                    + bytes([data[at % len(data)] ^ 1 << bit])
                    + data[at % len(data) + 1 :]
                )
            for begin, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
                stranger.say(data[begin:end])
                scene.turns(0.0005)
        case ("repeat", number, which):
            if scene.said:
                someone(number).say(scene.said[which % len(scene.said)])
        case ("prove", number, wrong):
            someone(number).prove(wrong)
        case ("end", number, how):
            someone(number).end(how)
        case ("turn", seconds):
            scene.turns(seconds)
        case ("expected",):
            if left:
                scene.expect(left.pop())


@given(family=st.sampled_from([socket.AF_UNIX, socket.AF_INET]), script=st.lists(steps, max_size=20))
@example(family=socket.AF_UNIX, script=[("expected",)] * len(EXPECTED) + ALL_IN + [("come", MOST_STRANGERS)])
def test_who_is_expected_gets_in(family: int, script: list[tuple]) -> None:  # type: ignore[type-arg]
    with Conversations() as talks, socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(
            f"\0farandole-fuzz-{secrets.token_hex(8)}" if family == socket.AF_UNIX else ("127.0.0.1", 0)
        )
        listener.listen(64)
        listener.setblocking(False)
        scene = Scene(family, talks, listener)
        left = list(EXPECTED)
        try:
            for step in script:
                play(scene, step, left)
                assert scene.places() <= MOST_PLACES, "strangers cost more and more"
            for purpose in left:
                scene.expect(purpose)
            assert talks.run(scene.all_in, time.monotonic() + IN_TIME_S), "somebody was kept out"
            assert sorted(purpose.index for purpose, *_ in scene.came) == [0, 1, 2], "each once, nobody else"
            for purpose, session, connection in scene.came:
                others, theirs = scene.let_in[purpose]
                theirs.sendall(others.signer().signed(WORD))
                connection.settimeout(IN_TIME_S)
                said = connection.recv(len(WORD) + TAG_BYTES)
                assert session.checker().right(said[: len(WORD)], said[len(WORD) :])
            for stranger in scene.strangers:
                stranger.connection.close()
            assert talks.run(scene.nobody_waits, time.monotonic() + IN_TIME_S), "a place is not given back"
        finally:
            for stranger in scene.strangers:
                stranger.connection.close()
            for _, _, connection in scene.came:
                connection.close()
            for _, connection in scene.let_in.values():
                connection.close()
