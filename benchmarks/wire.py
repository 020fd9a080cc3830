"""What the network between hosts can do: the bytes of an allreduce over plain TCP, with nothing added.

Every host must send and receive at least 2 (h - 1) / h of the tensor, h being the number of hosts. Here every
rank sends its share of that to the rank with its local rank on the next host, and receives as much from the
one before, both at once. Small sizes cost one message each way.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.bench.peers import Peer
from horovod.bench.work import Work

__all__ = ["Wire"]

_PIECE_BYTES = 1 << 20


class Wire(Peer):
    """Not a library: the least that must cross the network. Offers "allreduce" only.

    Args:
        team: by what the ranks meet: a peer over ``torch.distributed``.

    Hosts have equally many ranks, host by host; ``LOCAL_WORLD_SIZE`` says how many.
    """

    def __init__(self, team: Peer) -> None:
        import torch.distributed as dist

        self._team = team
        self.rank, self.size = team.rank, team.size
        self._local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        self._hosts = self.size // self._local_size
        distributed: Any = dist
        own = socket.socket(socket.AF_INET)
        own.bind((_own_address(), 0))
        own.listen(1)
        addresses: list[Any] = [None] * self.size
        distributed.all_gather_object(addresses, own.getsockname())
        following = addresses[(self.rank + self._local_size) % self.size]
        self._out = socket.create_connection(following, timeout=30)
        self._in, _ = own.accept()
        own.close()
        for each in (self._out, self._in):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.settimeout(60)
        self._buffer = memoryview(bytearray(_PIECE_BYTES))
        self._zeros = bytes(_PIECE_BYTES)

    def barrier(self) -> None:
        self._team.barrier()

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return self._team.total(values)

    def offers(self, operation: str) -> bool:
        return operation == "allreduce"

    def blocking(self, work: Work) -> Callable[[], object]:
        share = 2 * (self._hosts - 1) * work.size_bytes // self._hosts // self._local_size
        moved = max(1, share)
        if moved <= _PIECE_BYTES // 16:  # fits into the socket's buffer: no thread needed
            message = self._zeros[:moved]

            def exchange() -> None:
                self._out.sendall(message)
                self._receive(moved)

            return exchange

        def stream() -> None:
            sender = threading.Thread(target=self._send, args=(moved,))
            sender.start()
            self._receive(moved)
            sender.join()

        return stream

    def _send(self, count: int) -> None:
        while count:
            count -= self._out.send(self._zeros[: min(count, _PIECE_BYTES)])

    def _receive(self, count: int) -> None:
        while count:
            got = self._in.recv_into(self._buffer, min(count, _PIECE_BYTES))
            if got == 0:
                raise ConnectionError("the host before this one closed the connection")
            count -= got

    def in_flight(self, works: Sequence[Work]) -> Callable[[], list[object]]:
        calls = [self.blocking(work) for work in works]
        return lambda: [call() for call in calls]

    def close(self) -> None:
        self._team.close()


def _own_address() -> str:
    """The address of this host on the way to rank 0's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        address: str = probe.getsockname()[0]
    return address
