"""Connections of a rank that go through a process of their own, where each direction of each of them is late,
narrow, cut to single bytes and stalled by itself, by a seed.

``interpose`` goes between bootstrap and the engine of this rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from horovod.bootstrap.mesh.connections import Mesh, NetworkPeer, Receiver

MOST_WAITING = 1 << 18
REST_S = 0.0003
"""What comes after that long without anything is the begin of a burst."""


# -- in the rank
# ---------------------------------------------------------------------------------------------


def interpose(patch: pytest.MonkeyPatch, rank: int, seed: int) -> None:
    """From the next ``hvd.init()`` on, what this rank and the higher ones on other hosts say to each other
    goes through the relay. It ends with the connections.
    """
    hand_over = Mesh.hand_over

    def relayed(mesh: Mesh, engine: Receiver) -> None:
        wires: list[tuple[int, int, float]] = []

        def through(outside: int, lost: float) -> int:
            if outside < 0:
                return outside
            near, inside = socket.socketpair()
            wires.append((inside.detach(), mesh.owner.release(outside), lost))
            return mesh.owner.adopt(near.detach())

        def of(peer: NetworkPeer) -> NetworkPeer:
            if peer.rank < rank:
                return peer
            # A connection that carries data loses something more often than its neighbour.
            control = through(peer.control, 0.002)
            return dataclasses.replace(
                peer, control=control, data=[through(stream, 0.04) for stream in peer.data]
            )

        mesh.network_peers = [of(peer) for peer in mesh.network_peers]
        ends = [fd for wire in wires for fd in wire[:2]]
        if wires:
            subprocess.Popen(
                [sys.executable, "-m", "tests.contract.chaos_relay", f"--seed={seed}"]
                + [f"--wire={inside},{outside},{lost}" for inside, outside, lost in wires],
                pass_fds=ends,
            )
        for fd in ends:
            os.close(fd)
        hand_over(mesh, engine)

    patch.setattr(Mesh, "hand_over", relayed)


# -- in the relay
# ---------------------------------------------------------------------------------------------


@dataclass
class Way:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    weather: random.Random
    lost: float
    """The share of bursts that stop at their first byte."""
    waiting: bytearray = field(default_factory=bytearray)
    kind: str = "calm"
    turns: int = 0
    at: float = 0.0
    """When the next bytes may go."""
    allowed: int = 0
    last: float = 0.0
    full: bool = False
    ended: bool = False
    over: bool = False

    def take(self) -> None:
        while not self.ended and len(self.waiting) < MOST_WAITING:
            try:
                data = self.source.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            self.ended = not data
            self.waiting += data

    def pass_on(self, now: float) -> None:
        self.full = False
        while self.waiting and now >= self.at:
            if self.allowed == 0:
                wait, self.allowed = self.turn(now)
                self.at = now + wait
                continue
            try:
                sent = self.sink.send(memoryview(self.waiting)[: self.allowed])
            except BlockingIOError:
                self.full = True
                return
            except (BrokenPipeError, ConnectionResetError):  # nobody listens any more
                self.waiting.clear()
                self.ended = True
                break
            del self.waiting[:sent]
            self.allowed = self.allowed - sent if self.waiting else 0
        if self.ended and not self.waiting and not self.over:
            self.over = True
            if self.sink.fileno() >= 0:
                end(self.sink)

    def turn(self, now: float) -> tuple[float, int]:
        """How long what waits has to wait, and how much of it goes then."""
        rested, self.last = now > self.last + REST_S, now
        if rested and self.weather.random() < self.lost:
            wait = self.weather.uniform(0.05, 0.2)
            self.last = now + wait
            return wait, len(self.waiting)
        if self.turns == 0:
            self.kind = self.weather.choices(["calm", "late", "narrow", "crumbs"], [60, 20, 10, 10])[0]
            self.turns = self.weather.randint(1, 60 if self.kind == "crumbs" else 20)
        self.turns -= 1
        match self.kind:
            case "late":
                return self.weather.uniform(0, 0.002), len(self.waiting)
            case "narrow":
                return self.weather.uniform(0.00005, 0.0002), self.weather.randint(1, 8192)
            case "crumbs":
                return 0.0, 1
        return 0.0, len(self.waiting)


def end(sink: socket.socket) -> None:
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other side has gone


def relay(ways: list[Way]) -> None:
    """Pass on until all connections have ended."""
    while not all(way.over for way in ways):
        poll = select.poll()
        interest: dict[int, int] = {}
        now = time.monotonic()
        due = now + 1.0
        for way in ways:
            way.take()
            way.pass_on(now)
            if not way.ended and len(way.waiting) < MOST_WAITING:
                interest[way.source.fileno()] = interest.get(way.source.fileno(), 0) | select.POLLIN
            if way.full:
                interest[way.sink.fileno()] = interest.get(way.sink.fileno(), 0) | select.POLLOUT
            elif way.waiting:
                due = min(due, way.at)
        for fd, events in interest.items():
            poll.register(fd, events)
        poll.poll(max(0.0, due - time.monotonic()) * 1000.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--wire", action="append", required=True)
    arguments = parser.parse_args()
    ways = []
    for number, wire in enumerate(arguments.wire):
        inside, outside, lost = wire.split(",")
        near, far = socket.socket(fileno=int(inside)), socket.socket(fileno=int(outside))
        for one, other in ((near, far), (far, near)):
            one.setblocking(False)
            weather = random.Random(f"{arguments.seed}-{number}-{one is near}")
            ways.append(Way(one, other, weather, float(lost)))
    relay(ways)


if __name__ == "__main__":
    main()
