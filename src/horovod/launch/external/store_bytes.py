"""Bytes through the store, in parts: calls and results of ranks that another launcher started.

Their wrappers have a connection to the store and nothing else. A part is a value of its own, so that one
message stays small; all of them together count towards what a store may hold.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from horovod.bootstrap.store.client import StoreClient
from horovod.errors import LaunchError

__all__ = ["CALL", "RESULT", "fetch", "leave"]

CALL = "call/"
RESULT = "result/"
_PART_BYTES = 16 << 20
_ANSWER_S = 60.0


def leave(client: StoreClient, prefix: str, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Put the bytes of ``pieces`` below ``prefix``; how many parts there are.

    Raises:
        RendezvousError: the store is gone, or full.
    """
    count = 0
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            part, left = left[:_PART_BYTES], left[_PART_BYTES:]
            client.set(f"{prefix}{count}", base64.b64encode(part).decode("ascii"))
            count += 1
    return count


def fetch(client: StoreClient, prefix: str, count: int, who: str) -> bytearray:
    """Fetch the bytes that ``who`` has left below ``prefix`` in ``count`` parts.

    Raises:
        LaunchError: this is nothing that ``leave`` has left.
        RendezvousError: the store is gone, or a part is missing.
    """
    data = bytearray()
    for number in range(count):
        part = client.get(f"{prefix}{number}", _ANSWER_S)
        try:
            if not isinstance(part, str):
                raise ValueError("no text")
            data += base64.b64decode(part, validate=True)
        except ValueError as error:
            raise LaunchError(
                f"Part {number} of what {who} left in the store makes no sense: {error}."
            ) from error
    return data
