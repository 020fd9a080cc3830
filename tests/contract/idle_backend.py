"""What backends of tests have in common that are asked for nothing else than one collective."""

from __future__ import annotations


class Idle:
    """Moves nothing, and waits for nobody."""

    def __init__(self, ranks: tuple[int, ...], self_rank: int, groups: tuple[tuple[int, ...], ...]) -> None:
        self._rank = self_rank

    def send(self, peer: int, data: memoryview) -> None:
        raise AssertionError("nobody sends")

    def recv(self, peer: int, data: memoryview) -> None:
        raise AssertionError("nobody receives")

    def barrier(self) -> None:
        """Does not wait."""

    def allreduce(self, data: memoryview, dtype: int, op: int) -> None:
        """Leaves it."""
