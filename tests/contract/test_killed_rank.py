"""A rank is killed at a random moment: every other one names it within a second, and nothing stays behind."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from horovod.bootstrap.store.server import StoreServer

VICTIM = Path(__file__).with_name("victim.py")
KILLS = 50 if os.environ.get("FARANDOLE_FULL_MATRIX") else 15
WORLD = 3
DETECTION_LIMIT_S = 1.0


def environment(rank: int, key: bytes, job: str, store: tuple[str, int], groups: str) -> dict[str, str]:
    slot = {
        "RANK": rank,
        "SIZE": WORLD,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": WORLD,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
    }
    return (
        os.environ
        | {f"HOROVOD_{name}": str(value) for name, value in slot.items()}
        | {
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": store[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store[1]),
            "HOROVOD_SECRET_KEY": key.hex(),
            "HOROVOD_JOB_ID": job,
            "HOROVOD_TRANSPORT_GROUPS": groups,
            "OMP_NUM_THREADS": "1",
        }
    )


def open_segments(job: str) -> set[str]:
    """Processes of the job, forked ones too, that still hold shared memory of ours."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            ours = job.encode() in (process / "environ").read_bytes()
            if ours and "memfd:farandole" in (process / "maps").read_text():
                found.add(process.name)
        except OSError:  # it ended meanwhile, or is not ours to look at
            continue
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("groups", ["", "single"], ids=["shm", "tcp"])
def test_every_other_rank_names_the_killed_one_within_a_second(groups: str) -> None:
    moments = random.Random(20261121)
    slowest = 0.0
    for kill in range(KILLS):
        slowest = max(slowest, kill_one(moments, kill, groups))
    print(f"slowest of {KILLS} kills: {slowest * 1e3:.1f} ms")


def kill_one(moments: random.Random, kill: int, groups: str) -> float:
    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    victim = moments.randrange(WORLD)
    with_child = kill % 2 == 0
    with StoreServer(key, job=job) as server:
        ranks = []
        for rank in range(WORLD):
            command = [sys.executable, str(VICTIM), "--seed", str(kill)]
            if rank == victim and with_child:
                command.append("--child")
            ranks.append(
                subprocess.Popen(
                    command,
                    env=environment(rank, key, job, server.address, groups),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            for process in ranks:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0.0, 0.05))  # the moment of the kill is what is random here
            killed_at = time.monotonic()
            ranks[victim].send_signal(signal.SIGKILL)
            slowest = 0.0
            for rank, process in enumerate(ranks):
                if rank == victim:
                    continue
                assert process.stdout is not None
                report = json.loads(process.stdout.readline())
                assert process.wait(10) == 3
                assert report["type"] == "PeerLostError", report
                assert report["rank"] == victim, report
                assert f"rank {victim}" in report["text"], report
                took = report["seen"] - killed_at
                assert took < DETECTION_LIMIT_S, report
                slowest = max(slowest, took)
        finally:
            for process in ranks:
                process.kill()
                if process.stdin is not None:
                    process.stdin.close()  # the forked child ends
                process.wait(10)
                if process.stdout is not None:
                    process.stdout.close()
    assert not open_segments(job)
    return slowest
