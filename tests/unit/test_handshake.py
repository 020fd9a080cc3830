from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.bootstrap.trust import handshake
from horovod.bootstrap.trust.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    RELEASE,
    REPLY_BYTES,
    Acceptor,
    Dialer,
    Purpose,
    Role,
    store_purpose,
    world_digest,
)
from horovod.errors import AuthenticationError, VersionError

KEY = bytes(range(32))
WANTED = Purpose(Role.DATA, 3, 1, 0, world_digest("job", "epoch/0/round/1/"))
ROOT = Path(__file__).resolve().parents[2]


def acceptor(key: bytes = KEY, wanted: Purpose = WANTED) -> Acceptor:
    return Acceptor(key, lambda purpose: purpose == wanted)


def test_two_that_know_the_key_agree() -> None:
    dialer, other = Dialer(KEY, WANTED), acceptor()
    reply = other.reply(dialer.hello)
    proof = dialer.answer(reply)
    assert other.verify(proof) == WANTED
    assert [len(said) for said in (dialer.hello, reply, proof)] == [HELLO_BYTES, REPLY_BYTES, PROOF_BYTES]


@pytest.mark.parametrize(
    "other",
    [
        Purpose(Role.CONTROL, 3, 1, 0, WANTED.world),
        Purpose(Role.DATA, 2, 1, 0, WANTED.world),
        Purpose(Role.DATA, 3, 0, 0, WANTED.world),
        Purpose(Role.DATA, 1, 3, 0, WANTED.world),
        Purpose(Role.DATA, 3, 1, 1, WANTED.world),
        Purpose(Role.DATA, 3, 1, 0, world_digest("job", "epoch/0/round/0/")),
        Purpose(Role.DATA, 3, 1, 0, world_digest("another", "epoch/0/round/1/")),
    ],
    ids=["role", "dialer", "acceptor", "swapped", "stream", "older round", "another job"],
)
def test_the_key_alone_opens_no_connection_for_another_purpose(other: Purpose) -> None:
    with pytest.raises(AuthenticationError, match="Nobody expects"):
        acceptor().reply(Dialer(KEY, other).hello)


def test_a_changed_purpose_breaks_the_proof() -> None:
    """Somebody in the middle of the handshake turns one wanted connection into another."""
    dialer = Dialer(KEY, Purpose(Role.CONTROL, 3, 1, 0, WANTED.world))
    changed = bytearray(dialer.hello)
    changed[8] = Role.DATA
    with pytest.raises(AuthenticationError):
        acceptor().reply(bytes(changed))


def test_an_acceptor_without_the_key_is_found_out() -> None:
    """It has recorded a hello of this job, and makes up the rest."""
    dialer = Dialer(KEY, WANTED)
    guessed = acceptor(key=bytes(32)).reply(Dialer(bytes(32), WANTED).hello)
    with pytest.raises(AuthenticationError):
        dialer.answer(guessed)


def test_a_recorded_reply_is_worthless() -> None:
    first, second = Dialer(KEY, WANTED), Dialer(KEY, WANTED)
    reply = acceptor().reply(first.hello)
    with pytest.raises(AuthenticationError):
        second.answer(reply)


def test_a_recorded_proof_is_worthless() -> None:
    dialer, first, second = Dialer(KEY, WANTED), acceptor(), acceptor()
    proof = dialer.answer(first.reply(dialer.hello))
    second.reply(dialer.hello)
    with pytest.raises(AuthenticationError):
        second.verify(proof)


def test_what_was_said_cannot_be_reflected() -> None:
    """The acceptor's own tag, sent back to it, is no proof; nor is a reply that the dialer's hello made."""
    dialer, other = Dialer(KEY, WANTED), acceptor()
    reply = other.reply(dialer.hello)
    with pytest.raises(AuthenticationError):
        other.verify(reply[-PROOF_BYTES:])


def test_a_proof_before_the_hello_is_refused() -> None:
    with pytest.raises(AuthenticationError):
        acceptor().verify(bytes(PROOF_BYTES))


@settings(max_examples=200, deadline=None)
@given(said=st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES))
def test_no_bytes_are_taken_for_a_hello(said: bytes) -> None:
    with pytest.raises(AuthenticationError):
        acceptor().reply(said)


@settings(max_examples=200, deadline=None)
@given(said=st.binary(min_size=REPLY_BYTES, max_size=REPLY_BYTES))
def test_no_bytes_are_taken_for_a_reply(said: bytes) -> None:
    with pytest.raises(AuthenticationError):
        Dialer(KEY, WANTED).answer(said)


def test_two_releases_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for purpose, who in ((WANTED, "Rank 1"), (store_purpose("job"), "The store")):
        dialer, other = Dialer(KEY, purpose), acceptor(wanted=purpose)
        with monkeypatch.context() as there:
            there.setattr(handshake, "RELEASE", "9.8.7")
            reply = other.reply(dialer.hello)
        with pytest.raises(
            VersionError, match=f"{who} runs Farandole 9.8.7, this process Farandole {RELEASE}"
        ) as caught:
            dialer.answer(reply)
        assert (caught.value.own, caught.value.other) == (RELEASE, "9.8.7")


def test_a_stranger_gets_no_answer_and_is_not_even_asked_what_he_wants() -> None:
    asked: list[Purpose] = []
    other = Acceptor(KEY, lambda purpose: not asked.append(purpose))  # type: ignore[func-returns-value]
    with pytest.raises(AuthenticationError, match="does not know the key"):
        other.reply(Dialer(b"a stranger's key", WANTED).hello)
    assert asked == []


def test_a_recorded_hello_is_answered_once() -> None:
    heard: set[bytes] = set()
    hello = Dialer(KEY, WANTED).hello
    Acceptor(KEY, lambda _: True, heard).reply(hello)
    with pytest.raises(AuthenticationError, match="recorded"):
        Acceptor(KEY, lambda _: True, heard).reply(hello)
    with pytest.raises(AuthenticationError):  # nor does a stranger fill that memory
        Acceptor(KEY, lambda _: True, heard).reply(Dialer(b"a stranger's key", WANTED).hello)
    assert len(heard) == 1


def test_a_reply_does_not_show_the_release() -> None:
    hello = Dialer(KEY, WANTED).hello
    replies = [acceptor().reply(hello) for _ in range(16)]
    masked = [reply[32:64] for reply in replies]
    assert len(set(masked)) == len(masked)
    assert not any(RELEASE.encode() in reply for reply in replies)
    # Not even its length: each byte takes many values.
    assert all(len({one[at] for one in masked}) > 4 for at in range(32))


def test_the_release_is_that_of_the_distribution() -> None:
    said = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    built = re.search(r"project\(farandole VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert said is not None
    assert built is not None
    assert said[1] == built[1] == RELEASE
