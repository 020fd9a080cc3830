from __future__ import annotations

import pytest

from horovod.bootstrap.trust.signing import ObjectSigner
from horovod.errors import AuthenticationError

KEY = bytes(range(32))


def signed(
    signer: ObjectSigner, sender: int = 1, name: str = "object", kind: str = "broadcast_object"
) -> bytes:
    operation = signer.next(kind, (0, 1), name)
    return b"a pickle" + signer.tag(operation, sender, b"a pickle")


def test_what_the_sender_signed_is_taken() -> None:
    one, other = ObjectSigner(KEY, b"world"), ObjectSigner(KEY, b"world")
    for _ in range(3):
        operation = other.next("broadcast_object", (0, 1), "object")
        assert bytes(other.check(operation, 1, memoryview(signed(one)))) == b"a pickle"


@pytest.mark.parametrize(
    "other",
    [
        signed(ObjectSigner(bytes(32), b"world")),
        signed(ObjectSigner(KEY, b"another round")),
        signed(ObjectSigner(KEY, b"world"), sender=2),
        signed(ObjectSigner(KEY, b"world"), name="another"),
        signed(ObjectSigner(KEY, b"world"), kind="allgather_object"),
        signed(ObjectSigner(KEY, b"world")).replace(b"pickle", b"PICKLE"),
        signed(ObjectSigner(KEY, b"world"))[:-1],
        b"",
    ],
    ids=["key", "round", "sender", "name", "operation", "bytes", "short", "nothing"],
)
def test_what_the_sender_did_not_sign_for_this_operation_is_refused(other: bytes) -> None:
    signer = ObjectSigner(KEY, b"world", ("a", "b"))
    operation = signer.next("broadcast_object", (0, 1), "object")
    with pytest.raises(AuthenticationError, match="is not what rank 1 on host b sent in it"):
        signer.check(operation, 1, memoryview(other))


def test_an_earlier_object_of_the_same_name_is_refused() -> None:
    sender, signer = ObjectSigner(KEY, b"world"), ObjectSigner(KEY, b"world")
    recorded = signed(sender)
    signer.check(signer.next("broadcast_object", (0, 1), "object"), 1, memoryview(recorded))
    with pytest.raises(AuthenticationError, match="number 1 of that name"):
        signer.check(signer.next("broadcast_object", (0, 1), "object"), 1, memoryview(recorded))


def test_another_set_of_ranks_counts_anew() -> None:
    """Numbers of process sets are used again: rank 1 was a member before, rank 2 was not."""
    former, newcomer = ObjectSigner(KEY, b"world"), ObjectSigner(KEY, b"world")
    signed(former)
    former.next("broadcast_object", (0, 1), "object")
    operations = [each.next("broadcast_object", (1, 2), "object") for each in (former, newcomer)]
    assert operations[0] == operations[1]
    assert operations[0] != ObjectSigner(KEY, b"world").next("broadcast_object", (0, 1), "object")
