"""Tags on the pickles that ranks send each other: nothing is unpickled that its sender did not sign.

Objects travel over whatever moves the bytes of operations: memory that ranks share, connections that are
protected or not (``HOROVOD_NETWORK_PROTECTION=off``), a library of others such as MPI. So the pickles are
signed by themselves, wherever they go.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Sequence

from horovod.bootstrap.trust.session import expand
from horovod.errors import AuthenticationError

__all__ = ["ObjectSigner"]


class ObjectSigner:
    """Makes and checks the tags of one rank in one world.

    Args:
        key: of the job.
        world: what stands for the round of the job: nothing is taken from another one.
        hosts: by rank, for messages.
    """

    tag_bytes = 32

    def __init__(self, key: bytes, world: bytes, hosts: tuple[str, ...] = ()) -> None:
        self._key = expand(hmac.digest(world, key, "sha256"), "objects", 32)
        self._hosts = hosts
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def next(self, operation: str, ranks: Sequence[int], name: str) -> str:
        """Return the text that stands for the next operation of that name among ``ranks``, the same on all of
        them. The number of their process set is not in it: other ranks may have had that number before, and
        have counted more.
        """
        members = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()
        place = f"{operation} {members} {name}"
        with self._lock:
            number = self._counts.get(place, 0)
            self._counts[place] = number + 1
        return f"{number} {place}"

    def tag(self, operation: str, sender: int, pickle: bytes | bytearray | memoryview) -> bytes:
        """Of what rank ``sender`` sends in an operation that :meth:`next` named: ``tag_bytes``."""
        head = f"{sender} {operation}".encode()
        signed = hmac.new(self._key, len(head).to_bytes(8, "big") + head, "sha256")
        signed.update(pickle)
        return signed.digest()

    def check(self, operation: str, sender: int, signed: memoryview) -> memoryview:
        """The pickle in ``signed``, which ends with its tag.

        Raises:
            AuthenticationError: ``sender`` did not send this in this operation.
        """
        pickle, tag = signed[: -self.tag_bytes], signed[-self.tag_bytes :]
        if not hmac.compare_digest(tag, self.tag(operation, sender, pickle)):
            number, kind, _, name = operation.split(" ", 3)
            host = f" on host {self._hosts[sender]}" if sender < len(self._hosts) else ""
            raise AuthenticationError(
                f"What {kind} {name!r}, number {number} of that name, got is not what rank {sender}{host} "
                "sent in it: it was changed on the way, and has not been unpickled. "
                "HOROVOD_NETWORK_PROTECTION=integrity protects all that ranks say to each other."
            )
        return pickle
