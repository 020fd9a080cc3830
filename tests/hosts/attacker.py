"""Somebody who wants to get into a job, or to keep it from running. A program of its own.

Its orders are one JSON object on standard input:

    what      "attack": say everything hostile to every target, report what came back
              "insider": know the key, but claim to be what nobody expects
              "flood": open many connections, hold them until standard input ends
              "look": what another user of the host can see of the processes ``pids``
    targets   [[host, port] or "name of an abstract Unix socket"]
    canary    a path: what would be unpickled or executed makes this file
    key       for the insider, in hexadecimal
    store     the target that is the store, for the insider
    user      become this user first

The report is one JSON object on standard output; replies are in hexadecimal.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import json
import os
import pickle
import resource
import secrets
import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

LISTEN_S = 0.6  # for answers that should not come: all connections at once
CONNECT_S = 10.0
HELLO_BYTES = 116
PROCESS_VM_READV = 310

Target = list[Any] | str


class Bomb:
    """Unpickling this is running a command."""

    def __init__(self, canary: str) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f"touch {self._canary}",)


def rpc_frames(canary: str) -> list[bytes]:
    """Requests of the original's services: digest, native length, pickle; and as others frame them."""
    bodies = [pickle.dumps(Bomb(canary), protocol) for protocol in (0, 2, 4, 5)]
    frames = []
    for body in bodies:
        length = struct.pack("i", len(body))
        digests = [
            bytes(32),
            hashlib.sha256(body).digest(),
            hmac.digest(b"", body, "sha256"),
            hmac.digest(bytes(32), body, "sha256"),
        ]
        frames += [digest + length + body for digest in digests]
        frames += [
            body,
            length + body,
            struct.pack(">I", len(body)) + body,
            struct.pack("<Q", len(body)) + body,
        ]
    return frames


def http_requests(canary: str) -> list[bytes]:
    """What gave the key and the peers' addresses away, and what put a function into a job."""
    body = base64.b64encode(pickle.dumps(Bomb(canary)))
    paths = [
        "/global/0",
        "/local_server1/0",
        "/cross_0/0",
        "/runfunc/func",
        "/runfunc_result/0",
        "/rank_and_size/server1/0",
        "/worker_addresses/0",
        "/secret_key",
        "/HOROVOD_SECRET_KEY",
        "/",
        "/../../proc/self/environ",
    ]
    requests = [
        f"{verb} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths for verb in ("GET", "DELETE")
    ]
    for path in ("/runfunc/func", "/global/0"):
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        requests.append(head.encode() + body)
    return requests


def store_frames() -> list[bytes]:
    """What the store understands, without the proof that comes before it."""
    cause = {"text": "attacked", "missing": [], "waited_s": 0, "rank": None, "host": ""}
    requests: list[dict[str, Any]] = [
        {"id": 1, "op": "get", "key": "epoch/0/last/0", "timeout_s": 0},
        {"id": 1, "op": "collect", "prefix": "", "count": 1, "timeout_s": 0},
        {"id": 1, "op": "abort", "scope": "", "cause": cause},
        {"id": 1, "op": "remove", "prefix": ""},
    ]
    bodies = [json.dumps(request).encode() for request in requests]
    return [struct.pack(">I", len(body)) + body for body in bodies]


def hello(role: int = 0) -> bytes:
    magic = b"faran\0\0\3"
    wish = magic + struct.pack(">BBHII", role, 0, 0, 1, 0) + bytes(32) + secrets.token_bytes(32)
    return wish + secrets.token_bytes(32)


def nonsense() -> list[bytes]:
    rest = store_frames()[0]
    return [
        b"",
        b"\0",
        b"\n\n\n",
        b"faran",
        bytes(116),
        b"\xff" * 116,
        bytes(1 << 20),
        struct.pack(">I", 0x7FFFFFFF),
        struct.pack("<Q", 1 << 62),
        b"faran fd" + bytes(9),
        b"Ruda" + bytes(20),
        b"\xc0" + bytes(25),
        b'{"end": 9}\n{"kill": true}\n',
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + secrets.token_bytes(300),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x80\x02]q\x00.",
        *[secrets.token_bytes(size) for size in (1, 115, 116, 117, 148, 4096)],
        *[hello(role) + secrets.token_bytes(32) + rest for role in range(5)],
        hello() + bytes(32) + rest * 100,
        hello(255) + bytes(500),
        hello()[:-1],
    ]


def connect(target: Target) -> socket.socket | None:
    if isinstance(target, str):
        connection = socket.socket(socket.AF_UNIX)
        address: Any = "\0" + target
    else:
        family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        connection = socket.socket(family)
        address = (target[0], target[1])
    try:
        connection.settimeout(CONNECT_S)
        connection.connect(address)
        connection.setblocking(False)
    except OSError:
        connection.close()
        return None
    return connection


def converse(
    said: Sequence[tuple[Target, bytes]], listen_s: float = LISTEN_S, closed: set[int] | None = None
) -> list[bytes]:
    """Say each text on a connection of its own, all at once; what came back until all are closed. ``closed``
    is given the numbers of those that the other side ended.
    """
    replies = [b""] * len(said)
    with selectors.DefaultSelector() as selector:
        left = {}
        for number, (target, text) in enumerate(said):
            connected = connect(target)
            if connected is not None:
                left[number] = text
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if text else 0)
                selector.register(connected, events, number)
        deadline = time.monotonic() + listen_s
        while selector.get_map() and time.monotonic() < deadline:
            for key, events in selector.select(max(0.0, deadline - time.monotonic())):
                number = key.data
                connection = cast(socket.socket, key.fileobj)
                try:
                    if events & selectors.EVENT_WRITE:
                        left[number] = left[number][connection.send(left[number]) :]
                        if not left[number]:
                            selector.modify(connection, selectors.EVENT_READ, number)
                    if events & selectors.EVENT_READ:
                        data = connection.recv(1 << 16)
                        replies[number] += data
                        if data:
                            continue
                        raise ConnectionResetError
                except OSError:
                    if closed is not None:
                        closed.add(number)
                    selector.unregister(connection)
                    connection.close()
        for key in list(selector.get_map().values()):
            cast(socket.socket, key.fileobj).close()
    return replies


def attack(targets: Sequence[Target], canary: str) -> dict[str, Any]:
    kinds = {
        "rpc": rpc_frames(canary),
        "http": http_requests(canary),
        "store": store_frames(),
        "nonsense": nonsense(),
    }
    said = [(target, text, kind) for target in targets for kind, texts in kinds.items() for text in texts]
    # Long enough for a hello: a store waits for the rest of one, and answers nobody before.
    whole = [(target, text.ljust(HELLO_BYTES, b"\0"), kind) for target, text, kind in said if text]
    said += [each for each in whole if each[2] != "nonsense"]
    closed: set[int] = set()
    replies = converse([(target, text) for target, text, _ in said], closed=closed)
    return {
        "said": len(said),
        "judged": [
            [target, number in closed]
            for number, (target, text, _) in enumerate(said)
            if len(text) >= HELLO_BYTES
        ],
        "replies": [
            [target, kind, reply.hex()] for (target, _, kind), reply in zip(said, replies, strict=True)
        ],
    }


def insider(targets: Sequence[Target], store: Sequence[Any], key: bytes) -> dict[str, Any]:
    from horovod.bootstrap.trust.handshake import (
        REPLY_BYTES,
        Dialer,
        Purpose,
        Role,
        store_purpose,
        world_digest,
    )

    job = os.environ.get("HOROVOD_JOB_ID", "")
    world = world_digest(job, "epoch/0/round/0/")
    claims = [
        Purpose(role, rank, 0, index, w)
        for role in Role
        for rank in (0, 7)
        for index in (0, 3)
        for w in (world, world_digest(job, ""), bytes(32))
    ]
    claims = [claim for claim in claims if claim != store_purpose(job)]
    wrong = [(target, Dialer(key, claim).hello) for target in targets for claim in claims]
    stolen = [
        (target, Dialer(secrets.token_bytes(32), store_purpose(job)).hello + bytes(32)) for target in targets
    ]
    unexpected = converse(wrong)
    guessed = converse(stolen)
    dialer = Dialer(key, store_purpose(job))
    request = store_frames()[0]
    with socket.create_connection((store[0], store[1]), CONNECT_S) as connection:
        connection.sendall(dialer.hello)
        reply = connection.recv(REPLY_BYTES, socket.MSG_WAITALL)
        proof = dialer.answer(reply)
        signed = dialer.session().signer().signed(request)
        connection.sendall(proof + signed)
        accepted = connection.recv(1 << 16)
    again = [dialer.hello + proof + signed, dialer.hello + reply[-32:] + signed]
    replayed = converse([(list(store), text) for text in again], CONNECT_S)
    return {
        "unexpected": [said.hex() for said in unexpected],
        "guessed": [said.hex() for said in guessed],
        "accepted": accepted.hex(),
        "replayed": [said.hex() for said in replayed],
        "reply_bytes": REPLY_BYTES,
    }


def look(pids: Sequence[int]) -> dict[str, Any]:
    """Try to read the environment, the descriptors and the memory of others."""
    seen = []
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in pids:
        for path in (f"/proc/{pid}/environ", f"/proc/{pid}/maps", f"/proc/{pid}/mem"):
            try:
                with open(path, "rb") as file:
                    seen.append([path, file.read(1 << 16).hex()])
            except OSError:
                continue
        try:
            seen += [[f"/proc/{pid}/fd", name] for name in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            pass
        buffer = ctypes.create_string_buffer(8)
        part = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
        if libc.syscall(PROCESS_VM_READV, pid, part, 1, part, 1, 0) > 0:
            seen.append([f"memory of {pid}", buffer.raw.hex()])
    return {"seen": seen}


def flood(targets: Sequence[Target], count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count * len(targets) + 64
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    held = []
    begun = hello()
    for number in range(count):
        for target in targets:
            connection = connect(target)
            if connection is None:
                continue
            try:
                connection.send(begun[: number % (len(begun) + 1)])
            except OSError:
                pass
            held.append(connection)
    print(json.dumps({"held": len(held)}), flush=True)
    sys.stdin.read()


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    if user := orders.get("user"):
        os.setgid(user)
        os.setuid(user)
    targets = orders.get("targets", [])
    match orders["what"]:
        case "attack":
            report = attack(targets, orders["canary"])
        case "insider":
            report = insider(targets, orders["store"], bytes.fromhex(orders["key"]))
        case "look":
            report = look(orders["pids"])
        case _:
            flood(targets, orders["count"])
            return
    print(json.dumps(report))


if __name__ == "__main__":
    main()
