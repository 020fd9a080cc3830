"""A backend that moves nothing. Rank 1 prints when a broadcast is begun."""

from __future__ import annotations


class Telling:
    def __init__(self, ranks: tuple[int, ...], self_rank: int, groups: tuple[tuple[int, ...], ...]) -> None:
        self._rank = self_rank

    def send(self, peer: int, data: memoryview) -> None:
        raise NotImplementedError

    def recv(self, peer: int, data: memoryview) -> None:
        raise NotImplementedError

    def barrier(self) -> None:
        """Does not wait."""

    def allreduce(self, data: memoryview, dtype: int, op: int) -> None:
        """Leaves it."""

    def broadcast(self, data: memoryview, root: int) -> None:
        if self._rank == 1:
            print("begun", flush=True)
