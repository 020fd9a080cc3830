"""A backend that moves nothing. Rank 1 prints when a broadcast is begun."""

from __future__ import annotations

from tests.contract.idle_backend import Idle


class Telling(Idle):
    def broadcast(self, data: memoryview, root: int) -> None:
        if self._rank == 1:
            print("begun", flush=True)
