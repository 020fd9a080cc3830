"""How starting scales: the real server of a store, and as many clients as a large job has ranks.

    python -m benchmarks.scaling.meeting                   # 64 to 4,096 ranks, 8 on each host; about a minute
    python -m benchmarks.scaling.meeting --ranks 512 --json results.json

Each client says what a rank says while a world is formed (``horovod/bootstrap/mesh/connecting.py``), over a
connection of its own to a server in another process. All clients live in one process and take turns, so the
time of the whole is no measure: what counts is what the server spends and holds, and the bytes that leave
it. Reading the book of all ranks, a rank's own part, is measured for one of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from horovod.bootstrap.mesh.identity import place_in
from horovod.bootstrap.place.topology import agree
from horovod.bootstrap.store.messages import FrameReader, encode
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.trust.handshake import REPLY_BYTES, Dialer, store_purpose
from horovod.bootstrap.trust.session import TAG_BYTES

RANKS = (64, 512, 4096)
RANKS_PER_HOST = 8
KEY = bytes(range(32))
PATIENCE_S = 3600.0
RECEIVE_BYTES = 1 << 20
LENGTH_BYTES = 4
DEFLATED = 1 << 31  # in a length
DESCRIPTORS = 64  # beside the connections

Row = dict[str, Any]


def identity(rank: int, size: int) -> dict[str, Any]:
    """What a rank of a job with 8 ranks on each host leaves in the store."""
    host, local = divmod(rank, RANKS_PER_HOST)
    machine = f"{host:08x}-5c1d-4d3e-9a86-{host * 2654435761 % 2**48:012x}"
    name = f"node-{host:04d}"
    return {
        "place": {
            "launcher": "horovodrun",
            "size": size,
            "local": [local, RANKS_PER_HOST],
            "cross": [host, size // RANKS_PER_HOST],
            "host": name,
        },
        "machine": {
            "boot_id": machine,
            "net_namespace": 4026531840,
            "uid": 1000,
            "host": name,
            "mode": "host",
        },
        "pid": 30000 + local,
        "addresses": [f"10.{host >> 8}.{host & 255}.2", f"192.168.{host >> 8}.{host & 255}"],
        "streams": 1,
        "connect_all": 128,
        "protection": "integrity",
        "missing_cipher": "",
        "unix": f"farandole-{os.urandom(16).hex()}",
        "process_sets": [],
        "operations": "",
        "cores": hex((1 << 64) - 1),
        "quota": None,
        "file_limit": None,
        "owner": {
            "host": name,
            "boot_id": machine,
            "pid_namespace": 4026531836,
            "pid": 30000 + local,
            "started": 123456 + rank,
        },
    }


class Client:
    """One rank's connection. Requests are written at once, answers read when they are there."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, PATIENCE_S)
        dialer = Dialer(KEY, store_purpose(""))
        self.socket.sendall(dialer.hello)
        reply = b""
        while len(reply) < REPLY_BYTES:
            reply += self.socket.recv(REPLY_BYTES - len(reply))
        self.socket.sendall(dialer.answer(reply))
        self.signer = dialer.session().signer()
        self.bytes = 0
        self.number = 0
        self.head = b""  # of the answer that is coming
        self.left = 0  # bytes of it that are still to come
        self.kept: bytearray | None = None  # what is read, if anybody wants it

    def ask(self, op: str, **operands: Any) -> None:
        self.number += 1
        self.socket.sendall(self.signer.signed(encode({"id": self.number, "op": op, **operands})))

    def read(self) -> bool:
        """Whether the answer is there. Its bytes are thrown away: there is no room for those of all."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the store has gone")
        self.bytes += len(data)
        if self.kept is not None:
            self.kept += data
        if len(self.head) < LENGTH_BYTES:
            more = data[: LENGTH_BYTES - len(self.head)]
            self.head, data = self.head + more, data[len(more) :]
            if len(self.head) < LENGTH_BYTES:
                return False
            self.left = (int.from_bytes(self.head, "big") & ~DEFLATED) + TAG_BYTES
        self.left -= len(data)
        if self.left == 0:
            self.head = b""
        return self.left == 0


def steps(size: int) -> Iterator[tuple[str, Callable[[Client, int], None]]]:
    """What all ranks ask, one after another: all answers to one before the next."""
    scope = "epoch/0/round/0/"
    yield (
        "claim",
        lambda c, r: c.ask(
            "compare_and_set", key=f"{scope}identity/{r}", expected=None, value=identity(r, size)
        ),
    )
    yield "note", lambda c, r: c.ask("set", key=f"epoch/0/last/{r}", value={"round": 0})
    yield (
        "watch",
        lambda c, r: c.ask("watch", scope=scope, who=f"rank {r}", rank=r, host=f"node-{r // 8:04d}"),
    )

    def collect(what: str, **usual: Any) -> Callable[[Client, int], None]:
        return lambda c, r: c.ask("collect", prefix=scope + what, count=size, timeout_s=PATIENCE_S, **usual)

    yield "identities", collect("identity/")
    for what, value in (("outcome/", ""), ("listening/", None), ("connected/", "")):

        def say(c: Client, r: int, what: str = what, value: str | None = value) -> None:
            here = [[f"10.{r // 8 >> 8}.{r // 8 & 255}.2", 30000 + r % 20000]] if value is None else value
            c.ask("set", key=f"{scope}{what}{r}", value=here)

        yield f"say {what[:-1]}", say
        yield what[:-1], collect(what, usual=[] if value is None else value)
    yield "unwatch", lambda c, r: c.ask("unwatch", scope=scope)


def serve(pipe: Connection) -> None:
    """In a process of its own: tells its address, then at each request what it has spent and held."""
    make_room()
    with StoreServer(KEY) as server:
        pipe.send(server.address)
        while pipe.recv():
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send({"cpu_s": used.ru_utime + used.ru_stime, "most_mb": used.ru_maxrss / 1024})


def make_room() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def meet(size: int) -> Row:
    """All ranks of a job of ``size`` form a world, as far as the store sees it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    address = ours.recv()

    def server() -> Row:
        ours.send(True)
        answer: Row = ours.recv()
        return answer

    began, before = time.monotonic(), server()
    clients = [Client(address) for _ in range(size)]
    row: Row = {"ranks": size, "steps": {}}
    with selectors.DefaultSelector() as selector:
        for name, ask in steps(size):
            start, sent = server(), sum(client.bytes for client in clients)
            for rank, client in enumerate(clients):
                ask(client, rank)
                selector.register(client.socket, selectors.EVENT_READ, client)
            waiting = size
            while waiting:
                for key, _ in selector.select(PATIENCE_S):
                    if key.data.read():
                        selector.unregister(key.fileobj)
                        waiting -= 1
            end = server()
            row["steps"][name] = {
                "cpu_s": end["cpu_s"] - start["cpu_s"],
                "mb": (sum(client.bytes for client in clients) - sent) / 1e6,
            }
            if name == "identities":
                row["read_s"] = read_s(clients[-1].kept, size)
            clients[-1].kept = bytearray() if name == "watch" else None
    end = server()
    row |= {
        "server_cpu_s": end["cpu_s"] - before["cpu_s"],
        "server_mb": end["most_mb"],
        "mb_out": sum(client.bytes for client in clients) / 1e6,
        "wall_s": time.monotonic() - began,
    }
    for client in clients:
        client.socket.close()
    ours.send(False)
    process.join(PATIENCE_S)
    return row


def read_s(frame: bytearray | None, size: int) -> float:
    """Seconds in which a rank finds its world in the book of all ranks, as it came."""
    assert frame is not None
    began = time.process_time()
    (message,) = FrameReader(inflates=True).feed(bytes(frame[:-TAG_BYTES]))
    identities = [message["ok"][str(rank)] for rank in range(size)]
    places = [place_in(rank, one) for rank, one in enumerate(identities)]
    agree(size - 1, places, [one["machine"]["boot_id"] for one in identities])
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS), help="of the jobs")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    make_room()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < max(arguments.ranks) + DESCRIPTORS:
        parser.error("not enough descriptors: raise the hard limit (ulimit -Hn)")
    rows = []
    print("ranks   server CPU s   server MB   MB out   read ms   largest steps (CPU s, MB)")
    for size in arguments.ranks:
        row = meet(size)
        rows.append(row)
        largest = sorted(row["steps"].items(), key=lambda item: -item[1]["cpu_s"])[:4]
        shown = ", ".join(f"{name} {one['cpu_s']:.2f} {one['mb']:.1f}" for name, one in largest)
        print(
            f"{size:5}   {row['server_cpu_s']:12.2f}   {row['server_mb']:9.0f}   {row['mb_out']:6.0f}   "
            f"{row['read_s'] * 1e3:7.1f}   {shown}",
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
